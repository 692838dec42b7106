#include "cli/rank_sums.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/error.h"
#include "cli/run_for_test.h"

namespace nibble::cli {
namespace {

ops::KernelOptions forcing(const std::string& row) {
  ops::KernelOptions kernels;
  if (!row.empty()) kernels.force("all_reduce=" + row);
  return kernels;
}

TEST(AllowRows, TellsTheTableWhatThereIs) {
  for (const bool has_peers : {true, false})
    for (const bool has_nccl : {true, false}) {
      ops::KernelOptions kernels = forcing("");
      allow_rows(has_peers ? "" : "no link", has_nccl ? "" : "no library", kernels);
      EXPECT_EQ(kernels.has_peer_memory, has_peers);
      EXPECT_EQ(kernels.has_nccl, has_nccl);
      EXPECT_TRUE(kernels.forced.empty());
    }
}

TEST(AllowRows, WhatIsNamedMustBeThere) {
  for (const char* row : {"one_shot", "one_shot_blocks"}) {
    ops::KernelOptions kernels = forcing(row);
    allow_rows("", "no library", kernels);
    EXPECT_TRUE(kernels.has_peer_memory);
  }
  ops::KernelOptions nccl = forcing("nccl");
  allow_rows("", "", nccl);
  EXPECT_TRUE(nccl.has_nccl);
  EXPECT_FALSE(nccl.has_peer_memory);
  for (const auto& [row, why] :
       {std::pair("one_shot", "no link"), {"one_shot_blocks", "no link"}, {"nccl", "no library"}}) {
    ops::KernelOptions kernels = forcing(row);
    try {
      allow_rows("no link", "no library", kernels);
      ADD_FAILURE() << row;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUsage);
      EXPECT_EQ(std::string(e.what()),
                std::string("--kernel all_reduce=") + row + " cannot be had here: " + why);
    }
  }
}

TEST(Doctor, ShowsWhichRowsAddUpOverRanks) {
  const auto rows_of = [](const char* ranks) {
    const CommandResult result = run_command({"doctor", "openai/gpt-oss-20b", "--device", "h200",
                                              "--json", "--tensor-parallel-size", ranks});
    const auto doctor = nlohmann::json::parse(result.out);
    std::map<std::string, int> rows;
    for (const auto& row : doctor["kernels"])
      if (row["op"].get<std::string>().starts_with("all_reduce")) ++rows[row["kernel"]];
    return rows;
  };
  EXPECT_TRUE(rows_of("1").empty());
  for (const auto& [ranks, large] : {std::pair("2", "one_shot_blocks"), {"8", "nccl"}}) {
    const auto rows = rows_of(ranks);
    EXPECT_EQ(rows.size(), 2u);
    EXPECT_TRUE(rows.contains("one_shot") && rows.contains(large)) << ranks;
  }
}

// An MTP layer has the whole head of its own where each rank has a part.
TEST(Doctor, CountsTheHeadOfDraftsOverRanks) {
  const auto bytes_of = [](const char* ranks, bool drafts) {
    std::vector<std::string> args{"doctor",
                                  std::string(NIBBLE_SOURCE_DIR) + "/models/nibble-tiny-qwen3-next",
                                  "--json", "--tensor-parallel-size", ranks};
    if (drafts)
      args.insert(args.end(),
                  {"--speculative-config", R"({"method":"mtp","num_speculative_tokens":1})"});
    const CommandResult result = run_command(args);
    return nlohmann::json::parse(result.out)["weight_bytes"].get<int64_t>();
  };
  const int64_t alone = bytes_of("1", true) - bytes_of("1", false);
  const int64_t beside = bytes_of("2", true) - bytes_of("2", false);
  EXPECT_GT(beside, alone);
}

}  // namespace
}  // namespace nibble::cli
