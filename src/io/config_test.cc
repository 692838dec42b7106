#include "io/config.h"

#include <gmock/gmock.h>

#include "io/io_test.h"
#include "io/original_layout.h"

namespace nibble {
namespace {

using test::error_of;
using testing::ElementsAre;
using testing::HasSubstr;

Config parse(std::string_view text) { return Config::parse(text, "config.json"); }

TEST(Config, ReadsEachKind) {
  const Config c = parse(R"({"i": 64, "whole": 128.0, "x": 1e-05, "b": true, "t": "yarn",
      "list": ["a", "b"], "ids": [1, 2], "one": 7, "none": null, "o": {"k": 3}})");
  EXPECT_EQ(c.integer("i", 1, 100), 64);
  EXPECT_EQ(c.integer("whole", 1, 1000), 128);
  EXPECT_EQ(c.number("x", 0, 1), 1e-5);
  EXPECT_EQ(c.number("i", 0, 100), 64);
  EXPECT_TRUE(c.boolean("b"));
  EXPECT_EQ(c.text("t"), "yarn");
  EXPECT_THAT(c.texts("list"), ElementsAre("a", "b"));
  EXPECT_THAT(c.integers("ids", 0, 9), ElementsAre(1, 2));
  EXPECT_THAT(c.integers("one", 0, 9), ElementsAre(7));
  EXPECT_EQ(c.object("o")->integer("k", 0, 9), 3);
  EXPECT_FALSE(c.has("none"));
  EXPECT_FALSE(c.object("none").has_value());
  EXPECT_EQ(c.integer_or("none", 5, 0, 9), 5);
  EXPECT_EQ(c.text_or("missing", "x"), "x");
}

TEST(Config, SaysWhatIsWrong) {
  const Config c = parse(R"({"i": 64, "t": "yarn", "half": 0.5, "o": {"k": [1]}, "big": 1e300,
      "huge": 18446744073709551615, "mixed": [1, "a"]})");
  EXPECT_EQ(error_of([&] { (void)c.integer("hidden", 1, 9); }),
            "config.json: hidden: is missing; expected a whole number from 1 to 9");
  EXPECT_EQ(error_of([&] { (void)c.integer("i", 1, 9); }),
            "config.json: i: found 64, expected a whole number from 1 to 9");
  EXPECT_EQ(error_of([&] { (void)c.integer("t", 1, 9); }),
            "config.json: t: found \"yarn\", expected a whole number from 1 to 9");
  EXPECT_EQ(error_of([&] { (void)c.number("t", 0, 1.5); }),
            "config.json: t: found \"yarn\", expected a number from 0 to 1.5");
  EXPECT_THAT(error_of([&] { (void)c.integer("half", 0, 9); }), HasSubstr("found 0.5"));
  EXPECT_THAT(error_of([&] { (void)c.integer("big", 0, INT64_MAX); }), HasSubstr("found 1e+300"));
  EXPECT_THAT(error_of([&] { (void)c.integer("huge", 0, INT64_MAX); }),
              HasSubstr("found 18446744073709551615"));
  EXPECT_THAT(error_of([&] { (void)c.boolean("i"); }), HasSubstr("expected true or false"));
  EXPECT_THAT(error_of([&] { (void)c.text("i"); }), HasSubstr("expected a string"));
  EXPECT_THAT(error_of([&] { (void)c.object("i"); }), HasSubstr("expected an object"));
  EXPECT_THAT(error_of([&] { (void)c.texts("mixed"); }), HasSubstr("found 1, expected a string"));
  EXPECT_THAT(error_of([&] { (void)c.object("o")->integer("k", 0, 9); }),
              HasSubstr("config.json: o.k: found a list of 1"));
}

// What Python writes of numbers that JSON does not have; in texts they stay.
TEST(Config, InfinityIsNoNumber) {
  const Config config = Config::parse(
      R"({"limit": [0.0, Infinity], "a": -Infinity, "b": NaN, "c": "a \"NaN\" \\", "d": 1})", "x");
  EXPECT_THAT(error_of([&] { (void)config.number_or("a", 1, 0, 9); }),
              HasSubstr("x: a: found \"-Infinity\", expected a number from 0 to 9"));
  EXPECT_THAT(error_of([&] { (void)config.integer_or("b", 1, 0, 9); }),
              HasSubstr("x: b: found \"NaN\", expected a whole number"));
  EXPECT_THAT(error_of([&] { (void)config.boolean_or("b", true); }), HasSubstr("x: b: found"));
  EXPECT_EQ(config.text("c"), "a \"NaN\" \\");
  EXPECT_EQ(config.integer("d", 0, 9), 1);
  EXPECT_THROW(Config::parse("{\"a\": Infinit}", "x"), Error);
}

TEST(Config, RefusesWhatIsNotAnObject) {
  EXPECT_THAT(error_of([] { parse("[1]"); }), HasSubstr("expected a JSON object"));
  EXPECT_THAT(error_of([] { parse("{\"a\": "); }), HasSubstr("config.json: not valid JSON"));
  EXPECT_THAT(error_of([] { parse("{\"a\": \"\xff\"}"); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of([] { parse("{\"a\":" + std::string(100000, '[')); }),
              HasSubstr("nested deeper than 64"));
  EXPECT_THAT(error_of([] { Config::load("/no/such/config.json"); }), HasSubstr("no such file"));
}

TEST(RopeParameters, BothNamesGiveTheSame) {
  const Config former = rope_parameters(
      parse(R"({"rope_theta": 150000, "rope_scaling": {"type": "yarn", "factor": 32.0}})"));
  const Config modern = rope_parameters(
      parse(R"({"rope_parameters": {"rope_type": "yarn", "factor": 32.0, "rope_theta": 150000}})"));
  for (const Config& rope : {former, modern}) {
    EXPECT_EQ(rope.text("rope_type"), "yarn");
    EXPECT_EQ(rope.number("factor", 1, 100), 32);
    EXPECT_EQ(rope.number("rope_theta", 1, 1e9), 150000);
  }
  const Config plain = rope_parameters(parse(R"({"rope_theta": 10000, "rope_scaling": null})"));
  EXPECT_EQ(plain.text("rope_type"), "default");
  EXPECT_EQ(plain.number("rope_theta", 1, 1e9), 10000);
}

TEST(RopeParameters, RefusesContradictionAndAbsence) {
  EXPECT_THAT(
      error_of([] {
        rope_parameters(parse(R"({"rope_theta": 1, "rope_scaling": {"type": "yarn", "factor": 2},
                                  "rope_parameters": {"type": "yarn", "factor": 4}})"));
      }),
      HasSubstr("rope_scaling: disagrees with rope_parameters"));
  EXPECT_THAT(error_of([] { rope_parameters(parse(R"({"rope_scaling": {"a": 2}})")); }),
              HasSubstr("rope_theta: is missing"));
  // Without a type they would be left out.
  EXPECT_THAT(error_of([] {
                rope_parameters(parse(R"({"rope_theta": 1, "rope_scaling": {"factor": 2}})"));
              }),
              HasSubstr("config.json: rope_scaling.rope_type: is missing beside factor"));
}

TEST(BuiltinConfig, HasBothGptOssSizes) {
  for (const auto& [name, layers, experts] :
       {std::tuple{"openai/gpt-oss-20b", 24, 32}, {"openai/gpt-oss-120b", 36, 128}}) {
    const Config c = builtin_config(name).value();
    EXPECT_EQ(c.integer("num_hidden_layers", 1, 100), layers);
    EXPECT_EQ(c.integer("num_local_experts", 1, 1000), experts);
    const std::vector<std::string> types = c.texts("layer_types");
    ASSERT_EQ(types.size(), static_cast<size_t>(layers));
    EXPECT_EQ(types[0], "sliding_attention");
    EXPECT_EQ(types[1], "full_attention");
    EXPECT_EQ(rope_parameters(c).number("rope_theta", 1, 1e9), 150000);
    EXPECT_FALSE(rope_parameters(c).boolean("truncate"));
  }
  EXPECT_FALSE(builtin_config("openai/gpt-oss-21b").has_value());
}

// OpenAI's file (values of original/config.json, 20b) must say the same as Hugging Face's.
TEST(OriginalConfig, SaysTheSameAsTheHuggingFaceFile) {
  const Config original = parse(R"({"num_hidden_layers": 24, "num_experts": 32,
      "experts_per_token": 4, "vocab_size": 201088, "hidden_size": 2880,
      "intermediate_size": 2880, "swiglu_limit": 7.0, "head_dim": 64, "num_attention_heads": 64,
      "num_key_value_heads": 8, "sliding_window": 128, "initial_context_length": 4096,
      "rope_theta": 150000, "rope_scaling_factor": 32.0, "rope_ntk_alpha": 1,
      "rope_ntk_beta": 32})");
  ASSERT_TRUE(is_original_config(original));
  const Config c = from_original_config(original);
  const Config hf = builtin_config("openai/gpt-oss-20b").value();
  EXPECT_FALSE(is_original_config(hf));
  for (const char* key :
       {"num_hidden_layers", "num_local_experts", "num_experts_per_tok", "vocab_size",
        "hidden_size", "intermediate_size", "head_dim", "num_attention_heads",
        "num_key_value_heads", "sliding_window", "max_position_embeddings"})
    EXPECT_EQ(c.integer(key, 0, INT64_MAX), hf.integer(key, 0, INT64_MAX)) << key;
  for (const char* key : {"swiglu_limit", "rms_norm_eps"})
    EXPECT_EQ(c.number(key, 0, 100), hf.number(key, 0, 100)) << key;
  for (const char* key : {"layer_types", "architectures"})
    EXPECT_EQ(c.texts(key), hf.texts(key)) << key;
  for (const char* key : {"attention_bias", "tie_word_embeddings"})
    EXPECT_EQ(c.boolean(key), hf.boolean(key)) << key;
  const Config a = rope_parameters(c), b = rope_parameters(hf);
  EXPECT_EQ(a.keys(), b.keys());
  for (const char* key :
       {"rope_theta", "factor", "beta_fast", "beta_slow", "original_max_position_embeddings"})
    EXPECT_EQ(a.number(key, 0, 1e9), b.number(key, 0, 1e9)) << key;
  EXPECT_EQ(c.object("quantization_config")->texts("modules_to_not_convert"),
            hf.object("quantization_config")->texts("modules_to_not_convert"));
}

}  // namespace
}  // namespace nibble
