// GpuRanks as threads of one process, which share its GPU: the way over NCCL is not open to those.
// Between processes: tests/ranks_gpu_test.py.
#include "ops/all_reduce/gpu_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "dist/test_ranks.h"
#include "ops/sample/sample.h"
#include "ops/sample/whole_logits.h"

namespace nibble::ops {
namespace {

std::vector<float> parts_of(int rank, int64_t n) {
  std::mt19937 random(static_cast<uint32_t>(31 * n + rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

struct Rank {
  explicit Rank(dist::TcpComm& host) : ranks(host) {
    cx.comm = &ranks;
    cx.kernels.gpu = cuda::h200();
    cx.stream = stream.handle();
  }
  template <typename T>
  Buffer to_gpu(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(sizeof(T) * values.size());
    Buffer buffer = cuda::device_buffer(bytes);
    cuda::copy(buffer.data(), values.data(), bytes);
    return buffer;
  }
  std::vector<float> from_gpu(const Tensor& t) {
    stream.wait();
    std::vector<float> values(t.num_elements());
    cuda::copy(values.data(), t.data, 4 * t.num_elements());
    return values;
  }
  // Buffers go when all are through.
  void wait_for_all() {
    std::byte end{};
    std::vector<std::byte> all(ranks.size());
    ranks.all_gather({&end, 1}, all);
  }
  cuda::Stream stream;
  gpu::GpuRanks ranks;
  Ctx cx;
};

// In order of ranks, to the bit; those of more than packets have room for in pieces.
TEST(GpuRanks, SumInOrderOfRanks) {
  for (const int size : {2, 3, 4})
    for (const int64_t n : {int64_t{2}, int64_t{2880}, gpu::GpuRanks::kCapacity + 6}) {
      std::vector<float> want = parts_of(0, n);
      for (int r = 1; r < size; ++r) {
        const std::vector<float> part = parts_of(r, n);
        for (int64_t i = 0; i < n; ++i) want[i] += part[i];
      }
      std::vector<std::vector<float>> got(size);
      dist::on_every_rank(dist::test_ranks(size), [&](dist::TcpComm& host) {
        Rank rank(host);
        const Buffer buffer = rank.to_gpu(parts_of(host.rank(), n));
        const Tensor t = make_tensor(buffer.data(), DType::kF32, {1, n});
        gpu::sum_one_shot(rank.cx, t);
        got[host.rank()] = rank.from_gpu(t);
        rank.ranks.check();
        rank.wait_for_all();
      });
      for (int r = 0; r < size; ++r)
        EXPECT_EQ(std::memcmp(got[r].data(), want.data(), 4 * n), 0)
            << size << " ranks, " << n << " floats, rank " << r;
    }
}

// Columns of three ranks, none as many as another; an odd number of floats.
TEST(GpuRanks, LogitsAreWholeEverywhere) {
  constexpr int64_t kBegin[] = {0, 16, 48, 61}, kVocab = 61;
  for (const int64_t rows : {1, 3, 40}) {
    std::vector<float> want(rows * kVocab);
    for (int r = 0; r < 3; ++r) {
      const int64_t columns = kBegin[r + 1] - kBegin[r];
      const std::vector<float> mine = parts_of(r, rows * columns);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t c = 0; c < columns; ++c)
          want[row * kVocab + kBegin[r] + c] = mine[row * columns + c];
    }
    dist::on_every_rank(dist::test_ranks(3), [&](dist::TcpComm& host) {
      Rank rank(host);
      const int r = host.rank();
      const int64_t columns = kBegin[r + 1] - kBegin[r];
      const Buffer mine = rank.to_gpu(parts_of(r, rows * columns));
      const Tensor part = make_tensor(mine.data(), DType::kF32, {rows, columns});
      WholeLogits whole(rank.cx, {kVocab, kBegin[r], columns}, rows);
      ASSERT_TRUE(whole.are_apart());
      const Tensor logits = whole.gather(rank.cx, part);
      EXPECT_EQ(logits.dim(0), rows);
      EXPECT_EQ(logits.dim(1), kVocab);
      EXPECT_EQ(rank.from_gpu(logits), want) << rows << " rows, rank " << r;
      rank.wait_for_all();
      // Each keeps its own: another finds them behind the next exchange.
      cuda::fill(logits.data, 0, 4 * logits.num_elements());
      whole.keep(rank.cx, part);
      gpu::meet(rank.cx);
      std::vector<float> row(kVocab);
      const Buffer pinned = cuda::pinned_buffer(4 * kVocab);
      const std::span<float> to(static_cast<float*>(pinned.data()), kVocab);
      whole.read(rank.cx, rows - 1, to);
      rank.stream.wait();
      EXPECT_TRUE(std::ranges::equal(to, std::span(want).last(kVocab))) << "rank " << r;
      rank.wait_for_all();
    });
  }
}

// The likeliest id of all columns, of whichever rank it is, as one GPU finds it in all; the lowest
// of equals; what is masked or no number on one rank is so on all.
TEST(GpuRanks, FindTheLikeliestIdsTogether) {
  constexpr int64_t kBegin[] = {0, 48, 61, 200}, kVocab = 200, kRows = 300;
  std::vector<float> all = parts_of(7, kRows * kVocab);
  for (const int64_t column : {20, 50, 150}) all[3 * kVocab + column] = 100;
  all[5 * kVocab + 55] = NAN;
  all[6 * kVocab + 199] = INFINITY;
  std::vector<uint32_t> never((kVocab + 31) / 32);
  for (const int64_t id : {20, 49, 60, 61}) never[id / 32] |= uint32_t{1} << (id % 32);
  std::vector<Greedy> want(kRows);
  const std::vector<int32_t> turn = {0};
  Ctx cpu;
  ref::sample_greedy(cpu, {want.data(), kRows, turn.data()},
                     make_tensor(all.data(), DType::kF32, {kRows, kVocab}), never.data());
  EXPECT_EQ(want[3].id, 50);
  dist::on_every_rank(dist::test_ranks(3), [&](dist::TcpComm& host) {
    Rank rank(host);
    const int r = host.rank();
    const int64_t columns = kBegin[r + 1] - kBegin[r];
    std::vector<float> part;
    for (int64_t row = 0; row < kRows; ++row)
      part.insert(part.end(), &all[row * kVocab + kBegin[r]], &all[row * kVocab] + kBegin[r + 1]);
    const Buffer mine = rank.to_gpu(part), masked = rank.to_gpu(never), at = rank.to_gpu(turn);
    const Buffer scratch = cuda::device_buffer(gpu::sample_scratch_bytes(kRows));
    const Buffer counters = cuda::device_buffer(4 * Ctx::kNumCounters);
    cuda::fill(counters.data(), 0, counters.size_bytes());
    rank.cx.scratch = {static_cast<std::byte*>(scratch.data()),
                       static_cast<size_t>(scratch.size_bytes())};
    rank.cx.counters = static_cast<uint32_t*>(counters.data());
    const Buffer found = rank.to_gpu(std::vector<Greedy>(kRows, {-7, 0}));
    const Buffer ids = rank.to_gpu(std::vector<int32_t>(kRows, -7));
    const GreedyOut out{.rows = static_cast<Greedy*>(found.data()),
                        .stride = kRows,
                        .turn = static_cast<const int32_t*>(at.data()),
                        .ids = static_cast<int32_t*>(ids.data()),
                        .first_id = static_cast<int32_t>(kBegin[r])};
    sample_greedy(rank.cx, out, make_tensor(mine.data(), DType::kF32, {kRows, columns}),
                  static_cast<const uint32_t*>(masked.data()));
    join_greedy(rank.cx, out, kRows);
    rank.stream.wait();
    std::vector<Greedy> got(kRows);
    std::vector<int32_t> fed(kRows);
    cuda::copy(got.data(), found.data(), found.size_bytes());
    cuda::copy(fed.data(), ids.data(), ids.size_bytes());
    for (int64_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(got[row].id, want[row].id) << "row " << row << ", rank " << r;
      EXPECT_NEAR(got[row].logprob, want[row].logprob, 2e-5) << "row " << row << ", rank " << r;
      EXPECT_EQ(fed[row], std::max(0, want[row].id));
    }
    rank.wait_for_all();
  });
}

// A rank that does not come: NaN by the clock, and an error for who asks; all sums behind it end at
// once.
TEST(GpuRanks, EndWithoutARankThatDoesNotCome) {
  dist::on_every_rank(dist::test_ranks(2), [&](dist::TcpComm& host) {
    Rank rank(host);
    const Buffer buffer = rank.to_gpu(parts_of(host.rank(), 2880));
    const Tensor t = make_tensor(buffer.data(), DType::kF32, {1, 2880});
    if (host.rank() == 0) {
      // Each by the clock alone would take a hundred seconds, and a test has thirty.
      rank.ranks.set_patience(std::chrono::seconds(1));
      for (int i = 0; i < 100; ++i) gpu::sum_one_shot(rank.cx, t);
      for (const float value : rank.from_gpu(t)) EXPECT_TRUE(std::isnan(value));
      try {
        rank.ranks.check();
        ADD_FAILURE() << "nobody is missed";
      } catch (const Error& e) {
        EXPECT_THAT(e.what(), testing::HasSubstr("another rank's GPU did not come to a sum"));
      }
    }
    rank.wait_for_all();
  });
}

// Who is told that a rank is lost waits for none.
TEST(GpuRanks, EndWhenTheyAreTold) {
  dist::on_every_rank(dist::test_ranks(2), [&](dist::TcpComm& host) {
    Rank rank(host);
    const Buffer buffer = rank.to_gpu(parts_of(host.rank(), 2880));
    const Tensor t = make_tensor(buffer.data(), DType::kF32, {1, 2880});
    if (host.rank() == 0) {
      rank.ranks.set_patience(std::chrono::hours(1));  // it would not end by the clock
      rank.ranks.abort();
      gpu::sum_one_shot(rank.cx, t);
      for (const float value : rank.from_gpu(t)) EXPECT_TRUE(std::isnan(value));
    }
    rank.wait_for_all();
  });
}

}  // namespace
}  // namespace nibble::ops
