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
#include "ops/sample/draw.h"
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

// Columns of three ranks, none as many as another; an odd number of floats. Each keeps its own:
// another finds them behind the next exchange.
TEST(GpuRanks, LogitsAreReadWhereTheyAre) {
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
      const Buffer any = rank.to_gpu(parts_of(r, 2));
      whole.keep(rank.cx, part);
      gpu::sum_one_shot(rank.cx, make_tensor(any.data(), DType::kF32, {1, 2}));
      const Buffer pinned = cuda::pinned_buffer(4 * kVocab);
      const std::span<float> to(static_cast<float*>(pinned.data()), kVocab);
      for (int64_t row = 0; row < rows; ++row) {
        whole.read(rank.cx, row, to);
        rank.stream.wait();
        EXPECT_TRUE(std::ranges::equal(to, std::span(want).subspan(row * kVocab, kVocab)))
            << "row " << row << ", rank " << r;
      }
      rank.wait_for_all();
    });
  }
}

// Rows of which each of three ranks has columns of its own, and finds ids in them.
constexpr int64_t kBegin[] = {0, 48, 61, 200}, kVocab = 200;

class Found {
 public:
  Found(Rank& rank, const std::vector<float>& all, const std::vector<uint32_t>& never)
      : rank_(rank),
        rows_(std::ssize(all) / kVocab),
        columns_(kBegin[rank.ranks.rank() + 1] - kBegin[rank.ranks.rank()]),
        mine_(rank.to_gpu(part_of(all))),
        never_(rank.to_gpu(never)),
        turn_(rank.to_gpu(std::vector<int32_t>{0})),
        scratch_(cuda::device_buffer(gpu::sample_scratch_bytes(rows_))),
        counters_(cuda::device_buffer(4 * Ctx::kNumCounters)),
        found_(rank.to_gpu(std::vector<Greedy>(rows_, {-7, 0}))),
        ids_(rank.to_gpu(std::vector<int32_t>(rows_, -7))) {
    cuda::fill(counters_.data(), 0, counters_.size_bytes());
    rank.cx.scratch = {static_cast<std::byte*>(scratch_.data()),
                       static_cast<size_t>(scratch_.size_bytes())};
    rank.cx.counters = static_cast<uint32_t*>(counters_.data());
  }
  void likeliest() {
    sample_greedy(rank_.cx, out(), logits(), never());
    join_greedy(rank_.cx, out(), rows_);
  }
  void drawn(const Buffer& draws) {
    sample_drawn_over_ranks(rank_.cx, out(), logits(), never(),
                            static_cast<const Draw*>(draws.data()));
  }
  std::vector<Greedy> rows() {
    rank_.stream.wait();
    std::vector<Greedy> got(rows_);
    std::vector<int32_t> fed(rows_);
    cuda::copy(got.data(), found_.data(), found_.size_bytes());
    cuda::copy(fed.data(), ids_.data(), ids_.size_bytes());
    for (int64_t row = 0; row < rows_; ++row) EXPECT_EQ(fed[row], std::max(0, got[row].id));
    return got;
  }

 private:
  std::vector<float> part_of(const std::vector<float>& all) const {
    const int r = rank_.ranks.rank();
    std::vector<float> part;
    for (int64_t row = 0; row < rows_; ++row)
      part.insert(part.end(), &all[row * kVocab + kBegin[r]], &all[row * kVocab] + kBegin[r + 1]);
    return part;
  }
  GreedyOut out() const {
    return {.rows = static_cast<Greedy*>(found_.data()),
            .stride = rows_,
            .turn = static_cast<const int32_t*>(turn_.data()),
            .ids = static_cast<int32_t*>(ids_.data()),
            .first_id = static_cast<int32_t>(kBegin[rank_.ranks.rank()])};
  }
  Tensor logits() const { return make_tensor(mine_.data(), DType::kF32, {rows_, columns_}); }
  const uint32_t* never() const { return static_cast<const uint32_t*>(never_.data()); }

  Rank& rank_;
  int64_t rows_, columns_;
  Buffer mine_, never_, turn_, scratch_, counters_, found_, ids_;
};

std::vector<uint32_t> bits_of(std::initializer_list<int64_t> ids) {
  std::vector<uint32_t> bits((kVocab + 31) / 32);
  for (const int64_t id : ids) bits[id / 32] |= uint32_t{1} << (id % 32);
  return bits;
}

// The likeliest id of all columns, of whichever rank it is, as one GPU finds it in all; the lowest
// of equals; what is masked or no number on one rank is so on all.
TEST(GpuRanks, FindTheLikeliestIdsTogether) {
  constexpr int64_t kRows = 300;
  std::vector<float> all = parts_of(7, kRows * kVocab);
  for (const int64_t column : {20, 50, 150}) all[3 * kVocab + column] = 100;
  all[5 * kVocab + 55] = NAN;
  all[6 * kVocab + 199] = INFINITY;
  const std::vector<uint32_t> never = bits_of({20, 49, 60, 61});
  std::vector<Greedy> want(kRows);
  const int32_t turn = 0;
  Ctx cpu;
  ref::sample_greedy(cpu, {want.data(), kRows, &turn},
                     make_tensor(all.data(), DType::kF32, {kRows, kVocab}), never.data());
  EXPECT_EQ(want[3].id, 50);
  dist::on_every_rank(dist::test_ranks(3), [&](dist::TcpComm& host) {
    Rank rank(host);
    Found found(rank, all, never);
    rank.wait_for_all();  // an allocation may wait for kernels, and those for that rank
    found.likeliest();
    const std::vector<Greedy> got = found.rows();
    for (int64_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(got[row].id, want[row].id) << "row " << row << ", rank " << host.rank();
      EXPECT_NEAR(got[row].logprob, want[row].logprob, 2e-5)
          << "row " << row << ", rank " << host.rank();
    }
    rank.wait_for_all();
  });
}

// The same ids on all ranks, of rows that draw; others are the likeliest still. What one rank draws
// that has all: DrawOverRanksGpu.
TEST(GpuRanks, DrawTheSameIds) {
  constexpr int64_t kRows = 40;  // all thread blocks find room on one GPU
  const std::vector<float> all = parts_of(9, kRows * kVocab);
  std::vector<Draw> draws(kRows);
  for (int64_t row = 0; row < kRows; ++row)
    draws[row] = {.temperature = row % 5 == 0 ? 0.0f : 1.0f,
                  .top_p = row % 2 == 0 ? 1.0f : 0.9f,
                  .top_k = row % 3 == 0 ? 50 : 0,
                  .u = static_cast<double>(row) / kRows};
  std::vector<std::vector<Greedy>> likeliest(3), drawn(3);
  dist::on_every_rank(dist::test_ranks(3), [&](dist::TcpComm& host) {
    Rank rank(host);
    const Buffer on_gpu = rank.to_gpu(draws);
    Found found(rank, all, bits_of({3, 100}));
    rank.wait_for_all();
    for (int again = 0; again < 3; ++again) {
      found.likeliest();
      likeliest[host.rank()] = found.rows();
      found.drawn(on_gpu);
      // What is launched behind it would hold the room on the one GPU that others still need.
      drawn[host.rank()] = found.rows();
    }
    rank.ranks.check();
    rank.wait_for_all();
  });
  int others = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    EXPECT_GE(drawn[0][row].id, 0);
    for (const int r : {1, 2}) {
      EXPECT_EQ(drawn[r][row].id, drawn[0][row].id) << "row " << row << ", rank " << r;
      EXPECT_EQ(drawn[r][row].logprob, drawn[0][row].logprob) << "row " << row << ", rank " << r;
    }
    const bool is_likeliest = drawn[0][row].id == likeliest[0][row].id;
    if (draws[row].temperature == 0) {
      EXPECT_TRUE(is_likeliest) << "row " << row;
    }
    others += !is_likeliest;
  }
  EXPECT_GT(others, kRows / 2);
}

// No id, and an error for who asks: of the likeliest, and of what is drawn where all have found
// the likeliest together (a row that has none draws nothing).
TEST(GpuRanks, FindNoIdsWithoutARankThatDoesNotCome) {
  constexpr int64_t kRows = 30;
  const std::vector<float> all = parts_of(8, kRows * kVocab);
  const std::vector<Draw> draws(kRows, {.temperature = 1});
  for (const bool is_drawn : {false, true})
    dist::on_every_rank(dist::test_ranks(3), [&](dist::TcpComm& host) {
      Rank rank(host);
      const Buffer on_gpu = rank.to_gpu(draws);
      Found found(rank, all, bits_of({}));
      rank.wait_for_all();
      if (is_drawn) {
        found.likeliest();
        for (const Greedy& row : found.rows()) EXPECT_GE(row.id, 0);
        rank.wait_for_all();
      }
      if (host.rank() < 2) {
        rank.ranks.set_patience(std::chrono::seconds(1));
        is_drawn ? found.drawn(on_gpu) : found.likeliest();
        for (const Greedy& row : found.rows()) EXPECT_EQ(row.id, Greedy::kNotFinite);
        EXPECT_THROW(rank.ranks.check(), Error);
      }
      rank.wait_for_all();
    });
}

// A rank that has no room for them says so, and the others say it too, rather than that it is gone.
TEST(GpuRanks, SayWhoHasNoRoomForLogits) {
  dist::on_every_rank(dist::test_ranks(3), [&](dist::TcpComm& host) {
    Rank rank(host);
    const int r = host.rank();
    const int64_t rows = r == 1 ? int64_t{1} << 40 : 1;
    try {
      WholeLogits whole(rank.cx, {kVocab, kBegin[r], kBegin[r + 1] - kBegin[r]}, rows);
      ADD_FAILURE() << "rank " << r << " has room";
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr("rank 1: the GPU refused")) << "rank " << r;
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
