// Files that a Tokenizer must refuse, with the field named, and settings that it must obey.
#include "text/tokenizer/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/tokenizer/tokenizer.h"
#include "text/utf8.h"

namespace nibble {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kAb = 256, kAbc = 257, kBc = 258, kSpecial = 259;

// Byte b has id b; then "ab", "abc", "bc", a special token and one merge of each.
json sample() {
  json vocab;
  for (char32_t c = 0; c < 324; ++c) {
    std::string spelling;
    utf8::append(c, spelling);
    if (const int b = byte_of_alphabet(c); b >= 0) vocab[spelling] = b;
  }
  vocab["ab"] = kAb;
  vocab["abc"] = kAbc;
  vocab["bc"] = kBc;
  return {{"added_tokens", {{{"id", kSpecial}, {"content", "<|end|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", "\\s+|\\S+"}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"b c", "a b", "ab c"}}}}};
}

Tokenizer parse(const json& j) { return Tokenizer::parse(j.dump(), "here.json"); }

std::string error_of(const std::string& text) {
  try {
    Tokenizer::parse(text, "here.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "(accepted)";
}

TEST(TokenizerJson, TheSampleIsGood) {
  const Tokenizer t = parse(sample());
  // "b c" has the lower rank, so "abc" becomes a + bc, and no merge joins these.
  EXPECT_THAT(t.encode("abc ab"), ElementsAre('a', kBc, ' ', kAb));
  EXPECT_THAT(t.encode("<|end|>", Specials::kRecognize), ElementsAre(kSpecial));
  EXPECT_EQ(t.size(), kSpecial + 1);
}

TEST(TokenizerJson, ObeysMergeRanksNotIds) {
  json j = sample();
  j["model"]["merges"] =
      json::parse(R"([["a", "b"], ["ab", "c"], ["b", "c"]])");  // pairs, other order
  EXPECT_THAT(parse(j).encode("abc"), ElementsAre(kAbc));
  j["model"]["merges"] = {"#version: 0.2", "a b"};
  EXPECT_THAT(parse(j).encode("abc"), ElementsAre(kAb, 'c'));
}

TEST(TokenizerJson, IgnoreMergesTakesWholePieces) {
  json j = sample();
  j["model"]["ignore_merges"] = true;
  EXPECT_THAT(parse(j).encode("abc abcb"), ElementsAre(kAbc, ' ', 'a', kBc, 'b'));
}

TEST(TokenizerJson, IdsMayHaveGaps) {
  json j = sample();
  j["added_tokens"][0]["id"] = 1000;
  const Tokenizer t = parse(j);
  EXPECT_EQ(t.size(), 1001);
  EXPECT_FALSE(t.decodable(999));
  EXPECT_TRUE(t.decodable(1000));
}

TEST(TokenizerJson, LiteralPatternsAreNotExpressions) {
  json j = sample();
  j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "b"}};
  EXPECT_THAT(parse(j).encode("abc"), ElementsAre('a', 'b', 'c'));
  j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "."}};
  EXPECT_THAT(parse(j).encode("ab.ab"), ElementsAre(kAb, '.', kAb));
}

struct Refusal {
  const char* name;
  std::function<void(json&)> damage;
  std::vector<std::string> says;
};

class Refused : public testing::TestWithParam<Refusal> {};

TEST_P(Refused, NamesTheField) {
  json j = sample();
  GetParam().damage(j);
  const std::string error = error_of(j.dump());
  EXPECT_THAT(error, testing::StartsWith("here.json: "));
  for (const std::string& part : GetParam().says) EXPECT_THAT(error, HasSubstr(part));
}

json& first_split(json& j) { return j["pre_tokenizer"]["pretokenizers"][0]; }

const Refusal kRefusals[] = {
    {"not_an_object", [](json& j) { j = json::array({1}); }, {"top level", "must be an object"}},
    {"no_model", [](json& j) { j.erase("model"); }, {"model", "is missing"}},
    {"other_model", [](json& j) { j["model"]["type"] = "Unigram"; }, {"model.type", "Unigram"}},
    {"no_vocab", [](json& j) { j["model"].erase("vocab"); }, {"model.vocab", "is missing"}},
    {"vocab_is_a_list", [](json& j) { j["model"]["vocab"] = {"a"}; }, {"model.vocab"}},
    {"no_merges", [](json& j) { j["model"].erase("merges"); }, {"model.merges", "is missing"}},
    {"merges_is_text", [](json& j) { j["model"]["merges"] = "a b"; }, {"model.merges"}},
    {"id_twice", [](json& j) { j["model"]["vocab"]["bc"] = 97; }, {"97 is taken"}},
    {"id_huge",
     [](json& j) { j["model"]["vocab"]["bc"] = 4294967296; },
     {"model.vocab[\"bc\"]", "4294967296 is not an id"}},
    {"id_at_limit", [](json& j) { j["model"]["vocab"]["bc"] = kMaxIds; }, {"is not an id"}},
    {"id_negative", [](json& j) { j["model"]["vocab"]["bc"] = -1; }, {"-1 is not an id"}},
    {"id_fraction", [](json& j) { j["model"]["vocab"]["bc"] = 1.5; }, {"1.5 is not an id"}},
    {"id_text", [](json& j) { j["model"]["vocab"]["bc"] = "5"; }, {"is not an id"}},
    {"id_list", [](json& j) { j["model"]["vocab"]["bc"] = {5}; }, {"is not an id"}},
    {"empty_token", [](json& j) { j["model"]["vocab"][""] = 500; }, {"empty token"}},
    {"byte_missing", [](json& j) { j["model"]["vocab"].erase("z"); }, {"byte 122"}},
    {"merge_of_unknown",
     [](json& j) {
       j["model"]["merges"] = {"a b", "q qq"};
     },
     {"model.merges[1]", "\"qq\""}},
    {"merge_to_unknown",
     [](json& j) { j["model"]["merges"] = {"z z"}; },
     {"model.merges[0]", "\"zz\""}},
    {"merge_one_part", [](json& j) { j["model"]["merges"] = {"ab"}; }, {"model.merges[0]"}},
    {"merge_three_parts", [](json& j) { j["model"]["merges"] = {"a b c"}; }, {"model.merges[0]"}},
    {"merge_single", [](json& j) { j["model"]["merges"] = {{"a"}}; }, {"model.merges[0]"}},
    {"merge_triple",
     [](json& j) {
       j["model"]["merges"] = {{"a", "b", "c"}};
     },
     {"model.merges["}},
    {"merge_number", [](json& j) { j["model"]["merges"] = {1}; }, {"model.merges[0]"}},
    {"merge_nested",
     [](json& j) {
       j["model"]["merges"] = {{{"a", "b"}}};
     },
     {"model.merges[0]"}},
    {"dropout", [](json& j) { j["model"]["dropout"] = 0.1; }, {"model.dropout", "0.1"}},
    {"subword_prefix",
     [](json& j) { j["model"]["continuing_subword_prefix"] = "##"; },
     {"continuing_subword_prefix"}},
    {"word_suffix",
     [](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
     {"end_of_word_suffix"}},
    {"ignore_merges_text",
     [](json& j) { j["model"]["ignore_merges"] = "yes"; },
     {"model.ignore_merges"}},
    {"normalizer",
     [](json& j) {
       j["normalizer"] = {{"type", "NFKC"}};
     },
     {"normalizer", "NFKC"}},
    {"normalizer_in_sequence",
     [](json& j) {
       j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}};
     },
     {"normalizer.normalizers[0]", "Lowercase"}},
    {"no_pre_tokenizer", [](json& j) { j["pre_tokenizer"] = nullptr; }, {"pre_tokenizer"}},
    {"other_pre_tokenizer",
     [](json& j) {
       j["pre_tokenizer"] = {{"type", "Metaspace"}};
     },
     {"pre_tokenizer.type", "Metaspace"}},
    {"empty_sequence",
     [](json& j) { j["pre_tokenizer"]["pretokenizers"] = json::array(); },
     {"pre_tokenizer"}},
    {"no_byte_level",
     [](json& j) { j["pre_tokenizer"]["pretokenizers"].erase(1); },
     {"pretokenizers[0]", "ByteLevel"}},
    {"byte_level_first",
     [](json& j) {
       auto& steps = j["pre_tokenizer"]["pretokenizers"];
       std::swap(steps[0], steps[1]);
     },
     {"pretokenizers[0]"}},
    {"behavior",
     [](json& j) { first_split(j)["behavior"] = "MergedWithNext"; },
     {"pretokenizers[0].behavior", "MergedWithNext"}},
    {"empty_pattern", [](json& j) { first_split(j)["pattern"]["Regex"] = ""; }, {"pattern"}},
    {"no_pattern", [](json& j) { first_split(j).erase("pattern"); }, {"pattern"}},
    {"bad_regex",
     [](json& j) { first_split(j)["pattern"]["Regex"] = "(a"; },
     {"pretokenizers[0].pattern", "cannot compile"}},
    {"backreference",
     [](json& j) { first_split(j)["pattern"]["Regex"] = "(a)\\1"; },
     {"pretokenizers[0].pattern", "\\1 is not supported"}},
    {"decoder",
     [](json& j) {
       j["decoder"] = {{"type", "WordPiece"}};
     },
     {"decoder", "WordPiece"}},
    {"post_processor",
     [](json& j) {
       j["post_processor"] = {{"type", "BertProcessing"}};
     },
     {"post_processor", "BertProcessing"}},
    {"template_without_ids",
     [](json& j) {
       j["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
                              {"special_tokens", json::object()}};
     },
     {"post_processor.special_tokens.<s>"}},
    {"template_with_unknown_id",
     [](json& j) {
       j["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
                              {"special_tokens", {{"<s>", {{"ids", {4000}}}}}}};
     },
     {"post_processor", "4000"}},
    {"added_without_id", [](json& j) { j["added_tokens"][0].erase("id"); }, {"added_tokens[0].id"}},
    {"added_id_huge", [](json& j) { j["added_tokens"][0]["id"] = 1LL << 40; }, {"added_tokens[0]"}},
    {"added_id_taken",
     [](json& j) { j["added_tokens"][0]["id"] = 97; },
     {"added_tokens[0]", "97 is taken"}},
    {"added_other_id",
     [](json& j) { j["added_tokens"][0]["content"] = "abc"; },
     {"added_tokens[0]", "257"}},
    {"added_twice",
     [](json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); },
     {"added_tokens[1]", "twice"}},
    {"added_empty", [](json& j) { j["added_tokens"][0]["content"] = ""; }, {"added_tokens[0]"}},
    {"added_is_text", [](json& j) { j["added_tokens"] = "x"; }, {"added_tokens"}},
    {"flag_is_number", [](json& j) { j["added_tokens"][0]["lstrip"] = 1; }, {"lstrip"}},
};

INSTANTIATE_TEST_SUITE_P(TokenizerJson, Refused, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(TokenizerJson, RefusesTextThatIsNotJson) {
  EXPECT_THAT(error_of(""), HasSubstr("here.json: not valid JSON"));
  EXPECT_THAT(error_of("{\"model\": {\"vocab\": {\"\xFF\": 1}}}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(std::string(100'000, '[')), HasSubstr("not valid JSON"));
}

TEST(TokenizerJson, RefusesEveryTruncation) {
  const std::string whole = sample().dump();
  for (size_t n = 0; n < whole.size(); n += 7) {
    EXPECT_THAT(error_of(whole.substr(0, n)), HasSubstr("not valid JSON")) << n;
  }
}

TEST(TokenizerJson, RefusesWhatIsThereTwice) {
  EXPECT_THAT(error_of(R"({"model": {"vocab": {}, "vocab": {}}})"), HasSubstr("model.vocab"));
  EXPECT_THAT(error_of(R"({"model": {"merges": [], "merges": []}})"), HasSubstr("model.merges"));
  EXPECT_THAT(error_of(R"({"decoder": null, "decoder": null})"),
              HasSubstr("decoder: is there twice"));
  std::string text = sample().dump();
  text.replace(text.find("\"ab\":256"), 8, "\"ab\":256,\"ab\":300");
  EXPECT_THAT(error_of(text), HasSubstr("model.vocab[\"ab\"]: is there twice"));
}

TEST(TokenizerJson, LoadNamesTheFile) {
  EXPECT_THROW(
      {
        try {
          Tokenizer::load("/no/such/place");
        } catch (const Error& e) {
          EXPECT_EQ(e.kind(), ErrorKind::kNotFound);
          EXPECT_THAT(e.what(), HasSubstr("/no/such/place"));
          throw;
        }
      },
      Error);
  const auto folder = std::filesystem::path(testing::TempDir()) /
                      ("tokenizer_json_test." + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << "{";
  EXPECT_THROW(
      {
        try {
          Tokenizer::load(folder.string());
        } catch (const Error& e) {
          EXPECT_THAT(e.what(), HasSubstr((folder / "tokenizer.json").string()));
          throw;
        }
      },
      Error);
  std::ofstream(folder / "tokenizer.json") << sample().dump();
  EXPECT_EQ(Tokenizer::load(folder.string()).size(), kSpecial + 1);
}

TEST(ByteAlphabet, HasEveryByteOnce) {
  std::vector<int> count(256);
  for (char32_t c = 0; c < 0x400; ++c) {
    if (const int b = byte_of_alphabet(c); b >= 0) ++count[b];
  }
  EXPECT_THAT(count, testing::Each(1));
  EXPECT_EQ(byte_of_alphabet(U'\u0120'), ' ');
  EXPECT_EQ(byte_of_alphabet(U'\u010A'), '\n');
  EXPECT_EQ(byte_of_alphabet(U'a'), 'a');
}

}  // namespace
}  // namespace nibble
