#include "ops/all_reduce/all_reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/caps.h"
#include "dist/test_ranks.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

std::vector<float> parts_of(int rank, int64_t n) {
  std::mt19937 random(static_cast<uint32_t>(31 * n + rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

// A float32 sum of R parts in order is off by at most R - 1 roundings of 2^-24 of what is summed up
// to there, so of the sum of the magnitudes; the twin by one of its own.
TEST(AllReduce, EveryRowEqualsTheTwinAndAllRanksAgree) {
  for (const auto& row : all_reduce_kernels())
    for (const int ranks : {2, 3, 4, 8})
      for (const auto& [tokens, hidden] :
           {std::pair<int64_t, int64_t>{1, 2880}, {1, 33}, {7, 4096}, {64, 2880}}) {
        if (row.run == nullptr || row.refuse({hidden, ranks}, {.allow_ref = true}) != nullptr)
          continue;
        const int64_t n = tokens * hidden;
        std::vector<double> sums(n), magnitudes(n);
        for (int r = 0; r < ranks; ++r) {
          const std::vector<float> part = parts_of(r, n);
          for (int64_t i = 0; i < n; ++i) sums[i] += part[i], magnitudes[i] += std::abs(part[i]);
        }
        std::vector<std::vector<float>> got(ranks);
        dist::on_every_rank(dist::test_ranks(ranks), [&](dist::TcpComm& comm) {
          Ctx cx;
          cx.comm = &comm;
          std::vector<float>& mine = got[comm.rank()];
          mine = parts_of(comm.rank(), n);
          row.run(cx, make_tensor(mine.data(), DType::kF32, {tokens, hidden}));
        });
        for (int64_t i = 0; i < n; ++i)
          ASSERT_NEAR(got[0][i], sums[i], ranks * magnitudes[i] * 0x1p-24)
              << row.name << ", " << ranks << " ranks, value " << i;
        for (int r = 1; r < ranks; ++r)
          EXPECT_EQ(std::memcmp(got[0].data(), got[r].data(), n * sizeof(float)), 0) << row.name;
      }
}

TEST(AllReduce, RunsOverSocketsOnCpus) {
  KernelOptions cpus;
  EXPECT_STREQ(pick(Op::kAllReduce, all_reduce_kernels(), AllReduceDesc{2880, 2}, cpus).row->name,
               "tcp");
  EXPECT_EQ(work_of(AllReduceDesc{100, 2}, {.streams = 3}).flops, 300);
}

TEST(AllReduce, GoesBySizeAndRanksOnGpus) {
  const auto row_of = [](const AllReduceDesc& desc, bool exact = false) {
    KernelOptions options;
    options.gpu = cuda::h200();
    options.exact = exact;
    return std::string(pick(Op::kAllReduce, all_reduce_kernels(), desc, options).row->name);
  };
  EXPECT_EQ(row_of({2880, 2, 1}), "one_shot");
  EXPECT_EQ(row_of({2880, 2, 45}), "one_shot");
  EXPECT_EQ(row_of({2880, 2, 46}), "one_shot_blocks");
  EXPECT_EQ(row_of({2880, 4, 16}), "one_shot_blocks");
  EXPECT_EQ(row_of({2880, 4, 8192}), "one_shot_blocks");
  EXPECT_EQ(row_of({2880, 2, 8192}, /*exact=*/true), "one_shot_blocks");
  EXPECT_EQ(row_of({2880, 4, 8192}, /*exact=*/true), "nccl");
  EXPECT_EQ(row_of({2880, 8, 1}), "one_shot");
  EXPECT_EQ(row_of({2880, 8, 8192}), "nccl");
  EXPECT_EQ(row_of({2882, 2, 8192}), "nccl");
}

// Tokens go by packets wherever they can; without NCCL blocks take what is large, of any ranks, and
// packets what no blocks take.
TEST(AllReduce, GoesByTheWaysThatGpusHave) {
  const auto options_of = [](bool has_peer_memory, bool has_nccl, bool exact) {
    KernelOptions options;
    options.gpu = cuda::h200();
    options.exact = exact;
    options.has_peer_memory = has_peer_memory;
    options.has_nccl = has_nccl;
    return options;
  };
  const auto row_of = [](const AllReduceDesc& desc, const KernelOptions& options) {
    return std::string(pick(Op::kAllReduce, all_reduce_kernels(), desc, options).row->name);
  };
  for (const bool exact : {false, true}) {
    const KernelOptions no_nccl = options_of(true, false, exact);
    const KernelOptions no_peers = options_of(false, true, exact);
    for (const int64_t ranks : {2, 3, 4, 5, 8}) {
      EXPECT_EQ(row_of({2880, ranks, 1}, no_nccl), "one_shot");
      EXPECT_EQ(row_of({2880, ranks, 8192}, no_nccl), "one_shot_blocks");
      EXPECT_EQ(row_of({2882, ranks, 1}, no_nccl), "one_shot");
      EXPECT_EQ(row_of({2882, ranks, 8192}, no_nccl), "one_shot");
      EXPECT_EQ(row_of({2880, ranks, 1}, no_peers), "nccl");
      EXPECT_EQ(row_of({2881, ranks, 8192}, no_peers), "nccl");
    }
  }
  try {
    row_of({2881, 2, 1}, options_of(true, false, false));
    ADD_FAILURE() << "nothing adds up an odd number of floats without NCCL";
  } catch (const Error& e) {
    const std::string why = e.what();
    for (const char* reason :
         {"no kernel for all_reduce", "one_shot: its packets are of two floats",
          "one_shot_blocks: it sends four floats at a time", "nccl: NCCL is not there"})
      EXPECT_NE(why.find(reason), std::string::npos) << why;
  }
}

}  // namespace
}  // namespace nibble::ops
