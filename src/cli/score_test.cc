#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/run_for_test.h"

namespace nibble::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kModel[] = NIBBLE_SOURCE_DIR "/models/nibble-tiny-gpt-oss";

CommandResult score(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"score", kModel, "--device", "cpu", "--threads", "1"});
  return run_command(std::move(arguments));
}

TEST(Score, OneEntryPerPositionBestFirst) {
  const CommandResult result = score({"--ids", "5,17,42", "--top", "3"});
  ASSERT_EQ(result.status, 0) << result.err;
  const json positions = json::parse(result.out).at("positions");
  ASSERT_EQ(positions.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const json& top = positions[i].at("top");
    EXPECT_EQ(positions[i].at("id"), std::vector<int>({5, 17, 42})[i]);
    ASSERT_EQ(top.size(), 3u);
    EXPECT_GE(top[0].at("logprob"), top[1].at("logprob"));
    EXPECT_GE(top[1].at("logprob"), top[2].at("logprob"));
  }
  EXPECT_LT(positions[0].at("next_logprob").get<double>(), 0);
  EXPECT_TRUE(positions[2].at("next_logprob").is_null());
}

// Of every position the whole distribution: it sums to 1, and the next id's entry is next_logprob.
TEST(Score, NextLogprobIsThatOfTheDistribution) {
  const json first =
      json::parse(score({"--ids", "100 200", "--top", "1024"}).out).at("positions").at(0);
  double sum = 0;
  for (const json& t : first.at("top")) {
    sum += std::exp(t.at("logprob").get<double>());
    if (t.at("id") == 200) {
      EXPECT_EQ(t.at("logprob"), first.at("next_logprob"));
    }
  }
  // 1,024 of 3,072 ids: most of the weight, and no more than all of it but for rounding (float
  // logprobs: 1e-6 relative).
  EXPECT_GT(sum, 0.9);
  EXPECT_LT(sum, 1 + 1e-6);
}

TEST(Score, ChunksGiveTheSameBitsAndExactIsAnotherRounding) {
  const std::string file = testing::TempDir() + "score_ids";
  std::ofstream out(file);
  for (int i = 0; i < 90; ++i) out << (i * i * 7 + 3) % 3000 << (i % 5 == 0 ? ",\n" : " ");
  out.close();
  const std::string whole = score({"--ids-file", file}).out;
  EXPECT_EQ(json::parse(whole).at("positions").size(), 90u);
  EXPECT_EQ(score({"--ids-file", file, "--chunk", "7"}).out, whole);
  EXPECT_EQ(score({"--ids-file", file, "--chunk", "1", "--json"}).out, whole);
  const std::string exact = score({"--ids-file", file, "--exact"}).out;
  EXPECT_NE(exact, whole);
  EXPECT_EQ(score({"--ids-file", file, "--activations", "bf16", "--chunk", "13"}).out, exact);
  EXPECT_NE(score({"--ids-file", file, "--kv-cache-dtype", "f32"}).out, whole);
}

TEST(Score, RefusesWithWords) {
  const auto expect = [](std::vector<std::string> arguments, int status, const char* text) {
    const CommandResult result = score(std::move(arguments));
    EXPECT_EQ(result.status, status) << text;
    EXPECT_THAT(result.err + result.out, HasSubstr(text));
  };
  expect({"--ids", "5,99999"}, 2, "the prompt contains 99999; ids of this model are 0 to 3071");
  expect({"--ids", "5,x"}, 2, "\"x\" is not a token id");
  expect({"--ids", "99999999999"}, 2, "is not a token id");
  expect({"--ids", ", ,"}, 2, "no token ids");
  expect({"--ids-file", "/no/such/file"}, 1, "/no/such/file: cannot be read");
  expect({}, 2, "ids");
  expect({"--ids", "1", "--exact", "--activations", "float"}, 2, "--exact");
  expect({"--ids", "1", "--memory-budget", "1M"}, 1, "does not fit");
  expect({"--ids", "1,2,3", "--max-model-len", "2"}, 2, "context of 2 tokens");
  expect({"--ids", "1", "--kv-cache-dtype", "int3"}, 2, "--kv-cache-dtype");
  expect({"--ids", "1", "--threads", "100000"}, 2, "--threads");
}

// The twins are refused by a text that names the flag that lets them; they agree with the kernels.
// Pages in float32, so that no rounding to bf16 goes either way: what is left is float32 against
// double, at most 1e-4 of the logits' root mean square of about 3 (models/gpt_oss_test.cc).
TEST(Score, TwinsRunWhereTheyAreAllowed) {
  std::vector<std::string> twins = {"--ids", "5,17,42", "--kv-cache-dtype", "f32"};
  for (const char* op : {"embed", "norm_qkv", "attention", "out_proj", "norm_route", "moe_up",
                         "moe_down", "norm_unembed"}) {
    twins.insert(twins.end(), {"--kernel", std::string(op) + "=ref"});
  }
  const CommandResult refused = score(twins);
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("--allow-ref"));
  twins.push_back("--allow-ref");
  const CommandResult exact = score(twins), fast = score({"--ids", "5,17,42", "--kv-cache-dtype",
                                                          "f32", "--activations", "float"});
  ASSERT_EQ(exact.status, 0) << exact.err;
  const json want = json::parse(exact.out).at("positions"),
             got = json::parse(fast.out).at("positions");
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(got[i].at("next_logprob").get<double>(), want[i].at("next_logprob").get<double>(),
                3e-4);
  }
}

}  // namespace
}  // namespace nibble::cli
