#include "cli/speculative_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "cli/run_for_test.h"

namespace nibble::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Method = SpeculationOptions::Method;

std::string refusal(const std::string& json) {
  try {
    parse_speculative_config(json);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(SpeculativeConfig, ReadsVllmsFields) {
  EXPECT_EQ(parse_speculative_config("").method, Method::kNone);
  SpeculationOptions o = parse_speculative_config(
      R"({"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4,"prompt_lookup_min":2})");
  EXPECT_EQ(o.method, Method::kNgram);
  EXPECT_EQ(o.num_tokens, 5);
  EXPECT_EQ(o.ngram_min, 2);
  EXPECT_EQ(o.ngram_max, 4);
  EXPECT_TRUE(o.is_adaptive);

  o = parse_speculative_config(R"({"method":"suffix","suffix_decoding_max_tree_depth":12,
      "suffix_decoding_max_cached_requests":3,"suffix_decoding_max_spec_factor":2.5,
      "suffix_decoding_min_token_prob":0.25,"adaptive":false})");
  EXPECT_EQ(o.method, Method::kSuffix);
  EXPECT_EQ(o.num_tokens, 12);  // as in vLLM
  EXPECT_EQ(o.suffix_max_depth, 12);
  EXPECT_EQ(o.suffix_max_requests, 3);
  EXPECT_EQ(o.suffix_max_factor, 2.5);
  EXPECT_EQ(o.suffix_min_token_probability, 0.25);
  EXPECT_FALSE(o.is_adaptive);
}

TEST(SpeculativeConfig, BoundsOfPromptLookupAreEachOthers) {
  const auto bounds = [](const std::string& fields) {
    const SpeculationOptions o =
        parse_speculative_config(R"({"model":"[ngram]","num_speculative_tokens":1)" + fields + "}");
    return std::pair(o.ngram_min, o.ngram_max);
  };
  EXPECT_EQ(bounds(""), std::pair(5, 5));
  EXPECT_EQ(bounds(R"(,"prompt_lookup_max":3)"), std::pair(3, 3));
  EXPECT_EQ(bounds(R"(,"prompt_lookup_min":7)"), std::pair(7, 7));
}

TEST(SpeculativeConfig, SyntheticRatesAreOneForEachDraft) {
  const SpeculationOptions o = parse_speculative_config(
      R"({"method":"ngram","num_speculative_tokens":2,"rejection_sample_method":"synthetic",
          "synthetic_acceptance_rates":[0.6,0.3]})");
  EXPECT_EQ(o.method, Method::kSynthetic);
  EXPECT_THAT(o.synthetic_rates, testing::ElementsAre(0.6, 0.3));
}

TEST(SpeculativeConfig, SyntheticLengthIsThatOfAllStepsAsFarAsItCanBe) {
  const auto rates_of = [](const std::string& length) {
    return parse_speculative_config(
               R"({"method":"ngram","num_speculative_tokens":3,"rejection_sample_method":"synthetic",
                   "synthetic_acceptance_length":)" +
               length + "}")
        .synthetic_rates;
  };
  EXPECT_THAT(rates_of("1"), testing::ElementsAre(0, 0, 0));
  EXPECT_THAT(rates_of("2.25"), testing::ElementsAre(1, 0.25, 0));
  EXPECT_THAT(rates_of("4.0"), testing::ElementsAre(1, 1, 1));
}

TEST(SpeculativeConfig, FewerDraftsInLargeBatches) {
  using OfBatch = SpeculationOptions::OfBatch;
  const auto by_batch = [](const std::string& lists) {
    return parse_speculative_config(R"({"method":"ngram","num_speculative_tokens":3,
        "num_speculative_tokens_per_batch_size":)" +
                                    lists + "}")
        .by_batch;
  };
  EXPECT_THAT(by_batch("[[5, 16, 1], [1, 4, 3], [40, 64, 0]]"),
              testing::ElementsAre(OfBatch{1, 3}, OfBatch{5, 1}, OfBatch{40, 0}));
  const auto fault = [](const std::string& lists) {
    return refusal(R"({"method":"ngram","num_speculative_tokens":3,
        "num_speculative_tokens_per_batch_size":)" +
                   lists + "}");
  };
  EXPECT_THAT(fault("3"), HasSubstr("must be a list"));
  for (const char* one : {"[1, 4]", "[0, 4, 1]", "[4, 1, 1]", "[1, 4, 4]", "[1, 4, -1]", "7",
                          "[1, 4, \"2\"]", "[1, 4.5, 1]"})
    EXPECT_THAT(fault("[" + std::string(one) + "]"),
                HasSubstr("must hold lists such as [1, 4, 3]: least and most sequences"))
        << one;
  EXPECT_THAT(fault("[[2, 4, 1]]"), HasSubstr("must begin with a batch of 1 sequence"));
  EXPECT_THAT(fault("[[1, 4, 3], [4, 9, 1]]"), HasSubstr("twice what holds for 4 sequences"));
}

// Command lines written for vLLM: what has no meaning here is taken, and said in the log.
TEST(SpeculativeConfig, FieldsOfVllmsThatChangeNothing) {
  testing::internal::CaptureStderr();
  const SpeculationOptions o = parse_speculative_config(
      R"({"method":"eagle3","model":"some/head","num_speculative_tokens":3,"revision":"v2",
          "draft_tensor_parallel_size":2,"max_model_len":2048,"enforce_eager":true,
          "attention_backend":"FLASH_ATTN","moe_backend":"triton","kv_cache_dtype":"fp8",
          "disable_padded_drafter_batch":true,"use_local_argmax_reduction":true,
          "parallel_drafting":false,"use_heterogeneous_vocab":false,"quantization":null})");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(o.num_tokens, 3);
  EXPECT_EQ(o.head_source.revision, "v2");
  for (const char* field : {"draft_tensor_parallel_size", "max_model_len", "enforce_eager",
                            "attention_backend", "moe_backend", "kv_cache_dtype",
                            "disable_padded_drafter_batch", "use_local_argmax_reduction"})
    EXPECT_THAT(log, HasSubstr("--speculative-config: " + std::string(field) + ": "));
  EXPECT_THAT(log, testing::Not(HasSubstr("parallel_drafting")));
}

TEST(SpeculativeConfig, AHeadHasWeights) {
  SpeculationOptions o = parse_speculative_config(
      R"({"method":"eagle3","model":"some/head","num_speculative_tokens":3,
          "draft_tensor_parallel_size":1})");
  EXPECT_EQ(o.method, Method::kHead);
  EXPECT_EQ(o.head_source.directory, "some/head");
  EXPECT_EQ(o.num_tokens, 3);
  EXPECT_FALSE(o.draws_drafts);
  EXPECT_FALSE(o.head_dense);
  o = parse_speculative_config(
      R"({"method":"eagle3","model":"some/head","num_speculative_tokens":1,
          "draft_sample_method":"probabilistic","quantization":"mxfp8",
          "rejection_sample_method":"synthetic","synthetic_acceptance_rates":[0.5]})");
  EXPECT_EQ(o.method, Method::kHead);
  EXPECT_THAT(o.synthetic_rates, testing::ElementsAre(0.5));
  EXPECT_TRUE(o.draws_drafts);
  ASSERT_TRUE(o.head_dense);
  EXPECT_EQ(o.head_dense->mlp, Format::kMxfp8);
}

// As in vLLM, the method may follow from the head's name.
TEST(SpeculativeConfig, AHeadsNameSaysThatItIsOne) {
  const SpeculationOptions o = parse_speculative_config(
      R"({"model":"nvidia/gpt-oss-120b-Eagle3-v3","num_speculative_tokens":7})");
  EXPECT_EQ(o.method, Method::kHead);
  EXPECT_EQ(o.head_source.directory, "nvidia/gpt-oss-120b-Eagle3-v3");
  EXPECT_THAT(refusal(R"({"model":"some/model","num_speculative_tokens":7})"),
              HasSubstr("it needs a \"method\""));
}

// Drawn by random numbers of their own where a rule is named that needs it.
TEST(SpeculativeConfig, TheRuleOfDrawnDrafts) {
  const auto rule_of = [](const std::string& more) {
    return parse_speculative_config(R"({"method":"mtp","num_speculative_tokens":2)" + more + "}")
        .drawn_rule;
  };
  const std::string drawn = R"(,"draft_sample_method":"probabilistic")";
  EXPECT_EQ(rule_of(drawn + R"(,"rejection_sample_method":"standard")"),
            VerificationRule::kStandard);
  EXPECT_EQ(rule_of(drawn + R"(,"rejection_sample_method":"block")"), VerificationRule::kBlock);
  EXPECT_EQ(rule_of(drawn), std::nullopt);
  EXPECT_EQ(rule_of(R"(,"rejection_sample_method":"block")"), std::nullopt);
}

TEST(SpeculativeConfig, AnMtpLayerIsTheModelsOwnOrAnothers) {
  for (const std::string method : {"mtp", "qwen3_next_mtp", "qwen3_5_mtp", "qwen3_5_moe_mtp"}) {
    const SpeculationOptions own = parse_speculative_config(
        R"({"num_speculative_tokens":2,"draft_sample_method":"probabilistic","method":")" + method +
        "\"}");
    EXPECT_EQ(own.method, Method::kHead);
    EXPECT_EQ(own.head_source.directory, "");
    EXPECT_EQ(own.num_tokens, 2);
    EXPECT_TRUE(own.draws_drafts);
  }
  EXPECT_EQ(
      parse_speculative_config(R"({"method":"mtp","model":"a/dir","num_speculative_tokens":1})")
          .head_source.directory,
      "a/dir");
}

std::string file_of(const std::string& text) {
  const std::string path = testing::TempDir() + "/draft_ids.json";
  std::ofstream(path) << text;
  return path;
}

TEST(SpeculativeConfig, AnMtpLayerMayDraftSomeIds) {
  const auto ids_of = [](const std::string& fields) {
    return parse_speculative_config(R"({"method":"mtp","num_speculative_tokens":1)" + fields + "}")
        .head_source.ids;
  };
  EXPECT_THAT(ids_of(""), testing::IsEmpty());
  EXPECT_THAT(ids_of(R"(,"draft_vocab_size":3)"), testing::ElementsAre(0, 1, 2));
  const std::string file = R"(,"draft_vocab_file":")" + file_of("[9, 2, 40, 7]") + "\"";
  EXPECT_THAT(ids_of(file), testing::ElementsAre(9, 2, 40, 7));
  EXPECT_THAT(ids_of(file + R"(,"draft_vocab_size":2)"), testing::ElementsAre(9, 2));
}

TEST(SpeculativeConfig, IdsToDraftThatCannotBe) {
  const auto fault = [](const std::string& fields) {
    return refusal(R"({"method":"mtp","num_speculative_tokens":1)" + fields + "}");
  };
  EXPECT_THAT(fault(R"(,"draft_vocab_size":0)"), HasSubstr("draft_vocab_size must be 1 to"));
  EXPECT_THAT(fault(R"(,"draft_vocab_size":"8")"), HasSubstr("draft_vocab_size must be 1 to"));
  EXPECT_THAT(fault(R"(,"draft_vocab_file":[1])"), HasSubstr("draft_vocab_file must be a text"));
  EXPECT_THAT(fault(R"(,"draft_vocab_file":"/no/such/file")"),
              HasSubstr("draft_vocab_file /no/such/file"));
  const std::string path = file_of("");
  const std::string file = R"(,"draft_vocab_file":")" + path + "\"";
  const std::pair<const char*, const char*> kCases[] = {
      {"", " must hold a JSON list of ids"},    {"[]", " must hold a JSON list of ids"},
      {"{\"0\":1}", " must hold a JSON list"},  {"[1, 2", " must hold a JSON list of ids"},
      {"[4, 1, 4]", " lists id 4 twice"},       {"[4, -1]", ": element 1 of the list is no id"},
      {"[4, 1.5]", ": element 1 of the list"},  {"[\"4\"]", ": element 0 of the list is no id"},
      {"[1e30]", ": element 0 of the list is"}, {"[16777216]", ": element 0 of the list is no id"}};
  for (const auto& [text, what] : kCases) {
    file_of(text);
    EXPECT_THAT(fault(file), HasSubstr("draft_vocab_file " + path + what)) << text;
  }
  file_of("[1, 2]");
  EXPECT_THAT(fault(file + R"(,"draft_vocab_size":3)"),
              HasSubstr("draft_vocab_size is 3, and draft_vocab_file " + path + " lists 2 ids"));
  EXPECT_THAT(refusal(R"({"method":"eagle3","model":"d","num_speculative_tokens":1,
                          "draft_vocab_size":8})"),
              HasSubstr("draft_vocab_size is for method \"mtp\""));
  EXPECT_THAT(refusal(R"({"method":"ngram","num_speculative_tokens":1,"draft_vocab_size":8})"),
              HasSubstr("no field \"draft_vocab_size\""));
}

TEST(SpeculativeConfig, SaysWhatIsWrong) {
  const std::vector<std::pair<const char*, const char*>> kCases = {
      {"ngram", "expected a JSON object"},
      {"[]", "expected a JSON object"},
      {"{}", "it needs a \"method\""},
      {R"({"method":"ngran","num_speculative_tokens":1})", "did you mean 'ngram'"},
      {R"({"method":"medusa","num_speculative_tokens":1})", "needs a drafter's weights"},
      {R"({"method":"deepseek_mtp","num_speculative_tokens":1})",
       "\"deepseek_mtp\" is of a family whose MTP layer nibble does not run"},
      {R"({"method":"eagle3","model":"d","num_speculative_tokens":1,"parallel_drafting":true})",
       "parallel_drafting is not what nibble does: drafts are made one after the other"},
      {R"({"method":"mtp","num_speculative_tokens":1,"enable_adaptive_verification":true})",
       "\"adaptive\" chooses"},
      {R"({"method":"ngram","num_speculative_tokens":2,"rejection_sample_method":"synthetic",
          "synthetic_acceptance_length":3.5})",
       "synthetic_acceptance_length must be 1.0 to 3.0"},
      {R"({"method":"ngram","num_speculative_tokens":2,"synthetic_acceptance_length":2})",
       "synthetic_acceptance_length is for rejection_sample_method"},
      {R"({"method":"ngram","num_speculative_tokens":1,"rejection_sample_method":"synthetic",
          "synthetic_acceptance_length":2,"synthetic_acceptance_rates":[1]})",
       "say the same: one of them"},
      {R"({"method":"mtp","num_speculative_tokens":1,"revision":"v2"})",
       "\"revision\" is of the head"},
      {R"({"method":"eagle3","num_speculative_tokens":1})", "needs a \"model\": the head's"},
      {R"({"method":"eagle3","model":"d","num_speculative_tokens":1,"prompt_lookup_max":2})",
       "no field \"prompt_lookup_max\""},
      {R"({"method":"eagle3","model":"d","num_speculative_tokens":1,
          "draft_sample_method":"gumbel"})",
       "must be greedy or probabilistic"},
      {R"({"method":"eagle3","model":"d","num_speculative_tokens":1,"quantization":"fp6"})",
       "quantization must be bf16, mxfp8, mxfp4 or nvfp4, not \"fp6\""},
      {R"({"method":"ngram"})", "it needs \"num_speculative_tokens\""},
      {R"({"method":"ngram","num_speculative_tokens":0})", "must be 1 to 32, not 0"},
      {R"({"method":"ngram","num_speculative_tokens":33})", "must be 1 to 32, not 33"},
      {R"({"method":"ngram","num_speculative_tokens":2.5})", "must be 1 to 32"},
      {R"({"method":"ngram","num_speculative_tokens":2,"prompt_lookup_maks":3})",
       "no field \"prompt_lookup_maks\"; did you mean 'prompt_lookup_max'"},
      {R"({"method":"ngram","num_speculative_tokens":2,"prompt_lookup_min":3,
          "prompt_lookup_max":2})",
       "prompt_lookup_min (3) is more than"},
      {R"({"method":"ngram","num_speculative_tokens":2,"rejection_sample_method":"synthetic"})",
       "needs synthetic_acceptance_rates"},
      {R"({"method":"ngram","num_speculative_tokens":2,"rejection_sample_method":"synthetic",
          "synthetic_acceptance_rates":[0.1,0.3]})",
       "must not rise"},
      {R"({"method":"ngram","num_speculative_tokens":2,"draft_sample_method":"probabilistic"})",
       "must be greedy"},
      {R"({"method":"mtp","num_speculative_tokens":2,"rejection_sample_method":"strict"})",
       "rejection_sample_method must be standard, block or synthetic, not \"strict\""},
      {R"({"method":"suffix","suffix_decoding_min_token_prob":"x"})", "must be 0.0 to 1.0"}};
  for (const auto& [json, text] : kCases) {
    EXPECT_THAT(refusal(json), AllOf(HasSubstr("--speculative-config: "), HasSubstr(text))) << json;
  }
}

TEST(SpeculativeConfig, ExactTextAndARuleForAnotherDoNotGoTogether) {
  for (const std::string rule : {"standard", "block"}) {
    const CommandResult run = run_command(
        {"score", std::string(NIBBLE_SOURCE_DIR) + "/models/nibble-tiny-qwen3-next", "--ids", "1,2",
         "--exact", "--speculative-config",
         R"({"method":"mtp","num_speculative_tokens":2,"draft_sample_method":"probabilistic",
             "rejection_sample_method":")" +
             rule + "\"}"});
    EXPECT_NE(run.status, 0);
    EXPECT_THAT(run.err, HasSubstr("that --exact rules out: it is another text"));
  }
}

TEST(SpeculativeConfig, TooManyForAStepIsSaidBeforeAnythingIsLoaded) {
  const CommandResult run =
      run_command({"score", std::string(NIBBLE_SOURCE_DIR) + "/models/nibble-tiny-gpt-oss", "--ids",
                   "1,2", "--max-num-batched-tokens", "16", "--speculative-config",
                   R"({"method":"ngram","num_speculative_tokens":16})"});
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("must be below --max-num-batched-tokens (16)"));
}

const std::string kSource = NIBBLE_SOURCE_DIR;

CommandResult score_with_head(const std::string& head) {
  return run_command({"score", kSource + "/models/nibble-tiny-gpt-oss", "--ids", "1,2,3",
                      "--speculative-config",
                      R"({"method":"eagle3","num_speculative_tokens":2,"model":")" + head + "\"}"});
}

TEST(SpeculativeConfig, HeadsForAnotherModelAreRefused) {
  CommandResult run = score_with_head(kSource + "/tests/goldens/eagle3/specforge");
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("made for a model with a hidden size of 96; this one, "
                                 "GptOssForCausalLM, has 256"));
  run = score_with_head(kSource + "/models/nibble-tiny-gpt-oss");
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("heads of one layer"));

  // The same head with the tokenizer of another model beside it, and with the model's own.
  const std::string shipped = kSource + "/models/nibble-tiny-gpt-oss-eagle3";
  const std::filesystem::path copy = std::filesystem::path(testing::TempDir()) / "other_tokenizer";
  std::filesystem::remove_all(copy);
  std::filesystem::copy(shipped, copy);
  std::filesystem::copy(kSource + "/models/nibble-tiny-gpt-oss/tokenizer.json", copy);
  run = score_with_head(copy);
  EXPECT_EQ(run.status, 0) << run.err;
  std::ofstream(copy / "tokenizer.json") << R"({"model": {"vocab": {"a": 0, "b": 1}}})";
  run = score_with_head(copy);
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("its ids are not those of the model's tokenizer"));
}

// Of another model of the same sizes: it drafts, and nobody wonders why in vain.
TEST(SpeculativeConfig, AnMtpLayerOfOtherWeightsIsToldOf) {
  const std::filesystem::path shipped = kSource + "/models/nibble-tiny-qwen3-next",
                              copy = std::filesystem::path(testing::TempDir()) / "other_weights";
  const auto score = [&] {
    return run_command(
        {"score", shipped, "--ids", "1,2,3", "--speculative-config",
         R"({"method":"mtp","num_speculative_tokens":2,"model":")" + copy.string() + "\"}"});
  };
  std::filesystem::remove_all(copy);
  std::filesystem::copy(shipped, copy);
  CommandResult run = score();
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, testing::Not(HasSubstr("other weights,")));
  {
    std::fstream file(copy / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header = 0;
    file.read(reinterpret_cast<char*>(&header), sizeof(header));
    std::string text(header, ' ');
    file.read(text.data(), static_cast<std::streamsize>(header));
    const nlohmann::json offsets = nlohmann::json::parse(text)["model.norm.weight"]["data_offsets"];
    file.seekp(static_cast<std::streamoff>(sizeof(header) + header + offsets[0].get<uint64_t>()));
    file.put('\x11');
  }
  run = score();
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("its last norm is not the model's: the MTP layer there was "
                                 "trained beside other weights,"));
}

TEST(SpeculativeConfig, IdsThatTheModelLacksAreRefused) {
  const CommandResult run =
      run_command({"score", kSource + "/models/nibble-tiny-qwen3-next", "--ids", "1,2,3",
                   "--speculative-config",
                   R"({"method":"mtp","num_speculative_tokens":2,"draft_vocab_size":1000000})"});
  EXPECT_NE(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("is not in the model's vocabulary of"));
}

// What a head adds to a model, before anything is loaded.
TEST(SpeculativeConfig, DoctorCountsAHeadAndShowsItsKernels) {
  const auto doctor = [](const std::string& name, const std::string& config) {
    const CommandResult run = run_command({"doctor", kSource + "/models/" + name, "--device", "cpu",
                                           "--json", "--speculative-config", config});
    EXPECT_EQ(run.status, 0) << run.err;
    return nlohmann::json::parse(run.out);
  };
  const nlohmann::json all = doctor("nibble-tiny-qwen3-next",
                                    R"({"method":"mtp","num_speculative_tokens":2})"),
                       some = doctor(
                           "nibble-tiny-qwen3-next",
                           R"({"method":"mtp","num_speculative_tokens":2,"draft_vocab_size":256})");
  EXPECT_GT(some["weight_bytes"], all["weight_bytes"]);  // rows of its own
  EXPECT_NE(some["drafts"], all["drafts"]);
  const std::pair<std::string, std::string> models[] = {
      {"nibble-tiny-gpt-oss", R"({"method":"eagle3","num_speculative_tokens":2,"model":")" +
                                  kSource + "/models/nibble-tiny-gpt-oss-eagle3\"}"},
      {"nibble-tiny-qwen3-next", R"({"method":"mtp","num_speculative_tokens":2})"}};
  for (const auto& [name, config] : models) {
    const nlohmann::json with = doctor(name, config), without = doctor(name, "");
    EXPECT_THAT(with["drafts"].get<std::string>(), HasSubstr("of weights"));
    EXPECT_GT(with["weight_bytes"], without["weight_bytes"]);
    EXPECT_FALSE(without.contains("drafts"));
    int num_of_head = 0;
    for (const auto& row : with["kernels"])
      num_of_head += row["op"].get<std::string>().starts_with("draft attention") ? 1 : 0;
    EXPECT_EQ(num_of_head, 1) << name;
  }
}

}  // namespace
}  // namespace nibble::cli
