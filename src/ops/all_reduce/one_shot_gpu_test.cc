// Ranks of one GPU: a stream and memory of its own for each, as GPUs of one host would have. What a
// link costs does not show here; order, slots and the end without an answer do.
#include "ops/all_reduce/one_shot.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/stream.h"

namespace nibble::ops {
namespace {

constexpr int64_t kCapacity = 64 * 2880;

std::vector<float> random_values(int seed, int64_t n) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random) * std::exp2(static_cast<float>(random() % 16));
  return values;
}

struct Rank {
  cuda::Stream stream;
  Buffer packets, counts = cuda::device_buffer(8), values = cuda::device_buffer(4 * kCapacity);
  gpu::PeerMemory peers;
  Ctx cx;
  Tensor tensor(int64_t tokens, int64_t hidden) {
    return make_tensor(values.data(), DType::kF32, {tokens, hidden});
  }
};

class Ranks {
 public:
  explicit Ranks(int size) {
    *static_cast<uint32_t*>(abort_.data()) = 0;
    for (int r = 0; r < size; ++r) {
      Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>());
      const int64_t bytes = gpu::PeerMemory::packet_bytes(size, kCapacity);
      rank.packets = cuda::device_buffer(bytes);
      cuda::fill(rank.packets.data(), 0, bytes), cuda::fill(rank.counts.data(), 0, 8);
      rank.cx.stream = rank.stream.handle();
      rank.peers = {.rank = r, .size = size, .capacity = kCapacity};
      rank.peers.counts = static_cast<uint32_t*>(rank.counts.data());
      rank.peers.abort = static_cast<uint32_t*>(abort_.data());
    }
    for (auto& rank : ranks_)
      for (int r = 0; r < size; ++r)
        rank->peers.packets[r] = static_cast<gpu::PeerMemory::Packet*>(ranks_[r]->packets.data());
  }
  Rank& operator[](size_t r) { return *ranks_[r]; }
  auto begin() { return ranks_.begin(); }
  auto end() { return ranks_.end(); }
  void abort() { *static_cast<volatile uint32_t*>(abort_.data()) = 1; }

 private:
  Buffer abort_ = cuda::pinned_buffer(4);
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// The sum in order of ranks, to the bit, on every rank, sum after sum.
TEST(OneShotGpu, SumsInOrderOfRanks) {
  for (const int size : {1, 2, 3, 4, 8}) {
    Ranks ranks(size);
    int seed = 0;
    for (const auto& [tokens, hidden] : {std::pair<int64_t, int64_t>{1, 2880},
                                         {1, 2},
                                         {3, 34},
                                         {64, 2880},
                                         {7, 4096},
                                         {1, 2880}}) {
      const int64_t n = tokens * hidden;
      std::vector<float> want;
      for (int r = 0; r < size; ++r) {
        const std::vector<float> part = random_values(100 * ++seed + r, n);
        cuda::copy(ranks[r].values.data(), part.data(), 4 * n);
        if (r == 0) want = part;
        for (int64_t i = 0; r > 0 && i < n; ++i) want[i] += part[i];
      }
      for (auto& rank : ranks)
        gpu::all_reduce_one_shot(rank->cx, rank->peers, rank->tensor(tokens, hidden));
      for (auto& rank : ranks) {
        rank->stream.wait();
        std::vector<float> got(n);
        cuda::copy(got.data(), rank->values.data(), 4 * n);
        EXPECT_EQ(std::memcmp(got.data(), want.data(), 4 * n), 0)
            << size << " ranks, " << tokens << " x " << hidden << ", rank " << rank->peers.rank;
      }
    }
  }
}

// A graph of them, launched again and again: the number of the sum is on the device.
TEST(OneShotGpu, IsReplayedInGraphs) {
  constexpr int kSums = 72, kReplays = 20;
  for (const int size : {2, 4}) {
    Ranks ranks(size);
    std::vector<cuda::Graph> graphs;
    for (auto& rank : ranks) {
      const std::vector<float> part(2880, rank->peers.rank == 0 ? 1.0f : 0.0f);
      cuda::copy(rank->values.data(), part.data(), 4 * 2880);
      graphs.emplace_back(rank->stream.handle(), [&] {
        for (int i = 0; i < kSums; ++i)
          gpu::all_reduce_one_shot(rank->cx, rank->peers, rank->tensor(1, 2880));
      });
    }
    const auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < kReplays; ++i)
      for (auto& rank : ranks) graphs[rank->peers.rank].launch(rank->stream.handle());
    for (auto& rank : ranks) rank->stream.wait();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begun;
    std::printf("%d ranks of one GPU: %.2f us a sum of 2,880 floats in a graph\n", size,
                took.count() / (kSums * kReplays));
    uint32_t counts[2];
    for (auto& rank : ranks) {
      cuda::copy(counts, rank->counts.data(), 8);
      EXPECT_EQ(counts[0], static_cast<uint32_t>(kSums * kReplays));
      EXPECT_EQ(counts[1], 0u);
      float first = 0;  // grows by the number of ranks each time, up to infinity
      cuda::copy(&first, rank->values.data(), 4);
      EXPECT_TRUE(std::isinf(first));
    }
  }
}

// A rank that does not come: the others end with NaN, at once where they are told, else by the
// clock.
TEST(OneShotGpu, EndsWithoutARankThatIsGone) {
  Ranks ranks(3);
  const auto send_two = [&] {
    for (const size_t r : {0, 2})
      gpu::all_reduce_one_shot(ranks[r].cx, ranks[r].peers, ranks[r].tensor(1, 2880));
  };
  const auto expect_nan = [&] {
    for (const size_t r : {0, 2}) {
      ranks[r].stream.wait();
      std::vector<float> got(2880);
      cuda::copy(got.data(), ranks[r].values.data(), 4 * 2880);
      for (const float value : got) ASSERT_TRUE(std::isnan(value));
    }
  };
  send_two();
  expect_nan();
  send_two();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ranks.abort();
  expect_nan();
}

}  // namespace
}  // namespace nibble::ops
