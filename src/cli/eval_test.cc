#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run_for_test.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kModel[] = NIBBLE_SOURCE_DIR "/models/nibble-tiny-gpt-oss";
constexpr char kText[] = NIBBLE_SOURCE_DIR "/tests/data/tiny_gpt_oss_transcripts.txt";

CommandResult eval(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(),
                   {"eval", kModel, "--text", kText, "--specials", "--device", "cpu"});
  return run_command(std::move(arguments));
}

json eval_json(std::vector<std::string> arguments) {
  arguments.push_back("--json");
  const CommandResult result = eval(std::move(arguments));
  EXPECT_EQ(result.status, 0) << result.err;
  return result.status == 0 ? json::parse(result.out) : json();
}

TEST(Eval, AModelAgreesWithItself) {
  const json e = eval_json({"--max-tokens", "300", "--window", "100", "--activations", "float",
                            "--against", "dense-format=bf16"});
  EXPECT_EQ(e["windows"], 3);
  EXPECT_EQ(e["positions"], 297);
  EXPECT_EQ(e["kl_max"], 0);
  EXPECT_EQ(e["top1_agreement"], 1);
  EXPECT_EQ(e["reference_nll"], e["candidate_nll"]);
}

// `nibble score` says the same of the same ids.
TEST(Eval, PerplexityIsThatOfTheScores) {
  std::ifstream in(kText);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::vector<int32_t> ids = Tokenizer::load(kModel).encode(text, Specials::kRecognize);
  ids.resize(64);
  std::string joined;
  for (const int32_t id : ids) joined += std::to_string(id) + " ";
  const CommandResult scored =
      run_command({"score", kModel, "--device", "cpu", "--activations", "float", "--ids", joined});
  ASSERT_EQ(scored.status, 0) << scored.err;
  double sum = 0;
  const json scores = json::parse(scored.out);
  for (const json& position : scores["positions"])
    if (!position["next_logprob"].is_null()) sum -= position["next_logprob"].get<double>();
  const json e = eval_json({"--max-tokens", "64", "--activations", "float"});
  EXPECT_EQ(e["positions"], 63);
  // Scores are rounded to float32: 63 of them, each below 16, by 2^-21 at most.
  EXPECT_NEAR(e["reference_nll"].get<double>() * 63, sum, 63 * 0x1p-21);
}

// The encoder's own figure: MXFP4 loses more than MXFP8, and both are told apart from nothing.
TEST(Eval, CoarserFormatsCostMore) {
  const json fine = eval_json({"--max-tokens", "400", "--activations", "float", "--allow-ref",
                               "--dense-format", "mxfp8", "--against", "dense-format=bf16"});
  const json coarse = eval_json({"--max-tokens", "400", "--activations", "float", "--dense-format",
                                 "mxfp4", "--against", "dense-format=bf16"});
  EXPECT_EQ(fine["reference_nll"], coarse["reference_nll"]);
  EXPECT_GT(fine["kl_mean"].get<double>(), 0);
  EXPECT_GT(coarse["kl_mean"].get<double>(), fine["kl_mean"].get<double>());
  EXPECT_GE(fine["top1_agreement"].get<double>(), coarse["top1_agreement"].get<double>());
  EXPECT_LT(coarse["kl_mean"].get<double>(), 1);  // it still is the same model
}

TEST(Eval, OneLayerCostsLessThanAll) {
  const json head = eval_json(
      {"--max-tokens", "1000", "--mxfp4-layers", "lm_head", "--against", "dense-format=bf16"});
  const json all = eval_json(
      {"--max-tokens", "1000", "--dense-format", "mxfp4", "--against", "dense-format=bf16"});
  EXPECT_LT(head["kl_mean"].get<double>(), all["kl_mean"].get<double>());
}

TEST(Eval, Fp8KeysAndValuesCostLittle) {
  const json e = eval_json({"--max-tokens", "1000", "--activations", "float", "--kv-cache-dtype",
                            "fp8", "--against", "kv-cache-dtype=bf16"});
  EXPECT_GT(e["kl_mean"].get<double>(), 0);
  EXPECT_LT(e["kl_mean"].get<double>(), .05);  // E4M3 errs by 1/16 at most, bf16 by 1/256
  EXPECT_GT(e["top1_agreement"].get<double>(), .95);
}

TEST(Eval, RefusesWhatItCannotCompare) {
  const auto expect = [](std::vector<std::string> arguments, const char* part) {
    const CommandResult result = eval(std::move(arguments));
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(part));
  };
  expect({"--against", "dense-format=fp4"}, "--against dense-format=fp4: ");
  expect({"--against", "speed=high"}, "--against speed=high: ");
  expect({"--max-tokens", "1"}, "has fewer than two tokens");
  const CommandResult missing = run_command({"eval", kModel, "--text", "/no/such/file"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/file"));
}

}  // namespace
}  // namespace nibble::cli
