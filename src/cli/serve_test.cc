// What `nibble serve` refuses before it loads anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run_for_test.h"

namespace nibble::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// With a budget that nothing fits into: what is not refused for its flags ends for that.
CommandResult serve(const std::vector<std::string>& flags) {
  std::vector<std::string> args = {
      "serve",           NIBBLE_SOURCE_DIR "/models/nibble-tiny-gpt-oss",
      "--device",        "cpu",
      "--port",          "0",
      "--memory-budget", "1M"};
  args.insert(args.end(), flags.begin(), flags.end());
  return run_command(args);
}

void expect_refused(const std::vector<std::string>& flags, const char* why) {
  const CommandResult result = serve(flags);
  EXPECT_EQ(result.status, 2) << flags.back();
  EXPECT_THAT(result.err, AllOf(HasSubstr(why), Not(HasSubstr("weights")))) << flags.back();
}

TEST(Serve, RefusesKeysThatWouldLetEverybodyIn) {
  expect_refused({"--api-key", ""}, "--api-key is empty");
  expect_refused({"--api-key", "", "real"}, "--api-key is empty");
  expect_refused({"--api-key", "real", ""}, "--api-key is empty");
  expect_refused({"--host", "0.0.0.0", "--api-key", ""}, "--api-key is empty");
  expect_refused({"--api-key="}, "--api-key");
  expect_refused({"--api-key", "two words"}, "clients cannot send it");
  setenv("NIBBLE_API_KEY", "", 1);
  expect_refused({}, "NIBBLE_API_KEY is set and empty");
  EXPECT_EQ(serve({"--api-key", "real"}).status, 1);
  setenv("NIBBLE_API_KEY", "real", 1);
  EXPECT_EQ(serve({}).status, 1);  // too little memory, and no complaint
  setenv("VLLM_API_KEY", "two words", 1);
  EXPECT_EQ(serve({}).status, 1);  // it has one
  unsetenv("NIBBLE_API_KEY");
  expect_refused({}, "clients cannot send it");
  setenv("VLLM_API_KEY", "", 1);
  expect_refused({}, "VLLM_API_KEY is set and empty");
  unsetenv("VLLM_API_KEY");
}

TEST(Serve, RefusesNamesThatAreNone) {
  expect_refused({"--served-model-name", ""}, "--served-model-name: is empty");
  expect_refused({"--served-model-name", "one", ""}, "--served-model-name: is empty");
}

TEST(Serve, RefusesNumbersThatMakeNoSense) {
  for (const char* seconds : {"nan", "inf", "-1", "1e300"}) {
    expect_refused({"--shutdown-timeout", seconds}, "--shutdown-timeout");
  }
  for (const char* date :
       {"xyz", "2026-13-01", "2026-02-30", "26-01-01", "2026-01-01x", "2026-1-1 "}) {
    expect_refused({"--chat-date", date}, "YYYY-MM-DD");
  }
  expect_refused({"--max-queued-requests", "9223372036854775807"}, "--max-queued-requests");
  expect_refused({"--max-connections", "9223372036854775807"}, "--max-connections");
  expect_refused({"--max-num-batched-tokens", "4"}, "must be at least --max-num-seqs (16)");
  expect_refused({"--max-model-len", "2147483647"}, "the 131072 positions that the model was made");
  expect_refused({"--max-num-seqs", "2147483647"}, "--max-num-seqs must be");
  expect_refused({"--scheduling-policy", "lifo"}, "--scheduling-policy");
  EXPECT_EQ(serve({"--chat-date", "2024-02-29", "--shutdown-timeout", "0.5"}).status, 1);
}

}  // namespace
}  // namespace nibble::cli
