// GpuRanks as threads of one process, which share its GPU: the way over NCCL is not open to those.
// Between processes: tests/ranks_gpu_test.py.
#include "ops/all_reduce/gpu_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "dist/test_ranks.h"
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
  Buffer to_gpu(const std::vector<float>& values) {
    const auto bytes = static_cast<int64_t>(4 * values.size());
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
        std::byte end{};  // buffers go when all are through
        std::vector<std::byte> all(size);
        host.all_gather({&end, 1}, all);
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
      const Buffer whole = rank.to_gpu(std::vector<float>(rows * kVocab + 1, 7.0f));
      const Tensor logits =
          whole_logits(rank.cx, make_tensor(whole.data(), DType::kF32, {rows * kVocab + 1}),
                       make_tensor(mine.data(), DType::kF32, {rows, columns}), {kVocab, kBegin[r]});
      EXPECT_EQ(logits.dim(0), rows);
      EXPECT_EQ(logits.dim(1), kVocab);
      EXPECT_EQ(rank.from_gpu(logits), want) << rows << " rows, rank " << r;
      std::byte end{};
      std::vector<std::byte> all(3);
      host.all_gather({&end, 1}, all);
    });
  }
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
    std::byte end{};
    std::vector<std::byte> all(2);
    host.all_gather({&end, 1}, all);
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
    std::byte end{};  // until then the other's memory stays
    std::vector<std::byte> all(2);
    host.all_gather({&end, 1}, all);
  });
}

}  // namespace
}  // namespace nibble::ops
