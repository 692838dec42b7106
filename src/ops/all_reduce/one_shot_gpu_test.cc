// Ranks of one GPU: a stream and memory of its own for each, as GPUs of one host would have. What a
// link costs does not show here; order, slots and the end without an answer do.
#include "ops/all_reduce/one_shot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cuda/device.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "formats/bf16.h"
#include "ops/norm/add_norm_over_ranks.h"

namespace nibble::ops {
namespace {

constexpr int64_t kCapacity = 64 * 2880, kMostValues = 2048 * 2880;
constexpr int64_t kRowBytes = 2 * 600 * 2880;  // so that more rows go in pieces

std::vector<float> random_values(int seed, int64_t n) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random) * std::exp2(static_cast<float>(random() % 16));
  return values;
}

int num_sms() { return cuda::open_device().num_sms; }

struct Rank {
  cuda::Stream stream;
  Buffer memory, counts = cuda::device_buffer(4 * gpu::PeerMemory::kCounts),
                 values = cuda::device_buffer(4 * kMostValues);
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
      rank.cx.stream = rank.stream.handle();
      rank.peers = {.rank = r,
                    .size = size,
                    .capacity = kCapacity,
                    .row_bytes = kRowBytes,
                    .num_blocks = std::min(60, 2 * num_sms() / size)};
      rank.peers.counts = static_cast<uint32_t*>(rank.counts.data());
      rank.peers.abort = static_cast<uint32_t*>(abort_.data());
      rank.memory = cuda::device_buffer(rank.peers.bytes());
      for (const Buffer* buffer : {&rank.memory, &rank.counts})
        cuda::fill(buffer->data(), 0, buffer->size_bytes());
    }
    for (auto& rank : ranks_)
      for (int r = 0; r < size; ++r) rank->peers.set_memory(r, ranks_[r]->memory.data());
  }
  Rank& operator[](size_t r) { return *ranks_[r]; }
  auto begin() { return ranks_.begin(); }
  auto end() { return ranks_.end(); }
  void abort() { *static_cast<volatile uint32_t*>(abort_.data()) = 1; }

 private:
  Buffer abort_ = cuda::pinned_buffer(4);
  std::vector<std::unique_ptr<Rank>> ranks_;
};

float in_bf16(float value) { return bf16_to_float(bf16_from_float(value)); }

using Shape = std::pair<int64_t, int64_t>;  // tokens, hidden

// Whether the thread blocks of all ranks that send so many floats in packets are at work at a time
// on the one GPU, as they are where each rank has its own: four on each SM.
bool have_room(int size, int64_t floats) {
  const int64_t blocks = std::min<int64_t>(64, (floats / 2 + 255) / 256);
  return size * blocks <= 4 * num_sms();
}

using SumFn = void(Ctx& cx, const gpu::PeerMemory& peers, const Tensor& t);

// The sum in order of ranks, to the bit, on every rank, sum after sum.
void expect_sums(int size, bool exact, SumFn* sum, bool is_rounded,
                 const std::vector<Shape>& shapes) {
  Ranks ranks(size);
  int seed = 0;
  for (const auto& [tokens, hidden] : shapes) {
    const int64_t n = tokens * hidden;
    std::vector<float> want;
    for (int r = 0; r < size; ++r) {
      std::vector<float> part = random_values(100 * ++seed + r, n);
      cuda::copy(ranks[r].values.data(), part.data(), 4 * n);
      for (float& value : part) value = is_rounded ? in_bf16(value) : value;
      if (r == 0) want = part;
      for (int64_t i = 0; r > 0 && i < n; ++i) want[i] += part[i];
    }
    for (auto& rank : ranks) {
      rank->cx.kernels.exact = exact;
      sum(rank->cx, rank->peers, rank->tensor(tokens, hidden));
    }
    for (auto& rank : ranks) {
      rank->stream.wait();
      std::vector<float> got(n);
      cuda::copy(got.data(), rank->values.data(), 4 * n);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), 4 * n), 0)
          << size << " ranks, " << tokens << " x " << hidden << ", rank " << rank->peers.rank;
    }
  }
}

TEST(OneShotGpu, SumsInOrderOfRanks) {
  for (const int size : {2, 3, 4, 8}) {
    std::vector<Shape> shapes = {{1, 2880}, {1, 2}, {3, 34}, {64, 2880}, {7, 4096}, {1, 2880}};
    std::erase_if(shapes, [&](const Shape& s) { return !have_room(size, s.first * s.second); });
    EXPECT_GE(shapes.size(), 4u);
    expect_sums(size, /*exact=*/false, gpu::all_reduce_one_shot, /*is_rounded=*/false, shapes);
  }
}

// A block, several of one size, those of the next sizes, and rounds of the largest. The thread
// blocks of all ranks must find room on the one GPU.
TEST(OneShotGpu, SumsInBlocks) {
  for (const int size : {2, 3, 4})
    for (const bool exact : {false, true})
      expect_sums(size, exact, gpu::all_reduce_blocks, !exact,
                  {{1, 4},
                   {1, 2880},
                   {64, 2880},
                   {7, 4100},
                   {80, 2880},
                   {200, 2880},
                   {2048, 2880},
                   {64, 2880},
                   {2047, 2876}});
}

// A norm that makes the sum itself leaves the bits of a sum and a norm behind it: of one row a
// block and of several, of 8 columns a thread and of more, by bf16 and float32, into E4M3 and with
// the logits of a gate.
TEST(OneShotGpu, NormsMakeSums) {
  for (const int size : {2, 3})
    for (const auto& [tokens, hidden] : {Shape{1, 64},
                                         {47, 2880},
                                         {300, 2880},
                                         {603, 2880},
                                         {1001, 2880},
                                         {40, 6144},
                                         {515, 4096}}) {
      Ranks ranks(size);
      const int64_t n = tokens * hidden;
      const bool e4m3 = tokens % 2 != 0, has_gate = tokens % 4 != 3;
      const std::vector<float> residual = random_values(1, n);
      const std::vector<uint16_t> weights(2 * hidden, bf16_from_float(0.75f));
      struct Made {
        Buffer x, y, h, codes, scales, weights, logits;
      };
      const auto makes = [&](Rank& rank) {
        Made made{cuda::device_buffer(4 * n),      cuda::device_buffer(4 * n),
                  cuda::device_buffer(2 * n),      cuda::device_buffer(n),
                  cuda::device_buffer(4 * tokens), cuda::device_buffer(4 * hidden),
                  cuda::device_buffer(4 * tokens)};
        for (Buffer* out : {&made.y, &made.h, &made.codes, &made.scales, &made.logits})
          cuda::fill(out->data(), 0, out->size_bytes());
        cuda::copy(made.x.data(), residual.data(), 4 * n);
        cuda::copy(made.weights.data(), weights.data(), 4 * hidden);
        const std::vector<float> part = random_values(7 + rank.peers.rank, n);
        cuda::copy(rank.values.data(), part.data(), 4 * n);
        return made;
      };
      const auto norm_of = [&](Rank& rank, Made& made) {
        const auto* weight = static_cast<const uint16_t*>(made.weights.data());
        const gpu::AddNorm norm{.y = static_cast<float*>(made.y.data()),
                                .h = static_cast<uint16_t*>(made.h.data()),
                                .x = static_cast<const float*>(made.x.data()),
                                .d = static_cast<const float*>(rank.values.data()),
                                .norm = {.weight = weight, .eps = 1e-5f},
                                .tokens = tokens,
                                .hidden = hidden,
                                .e4m3 = {e4m3 ? static_cast<uint8_t*>(made.codes.data()) : nullptr,
                                         static_cast<float*>(made.scales.data())}};
        const gpu::GateLogits gate{has_gate ? weight + hidden : nullptr,
                                   static_cast<float*>(made.logits.data())};
        return std::pair(norm, gate);
      };
      const auto bytes_of = [](Made& made) {
        std::vector<std::byte> bytes;
        for (Buffer* out : {&made.y, &made.h, &made.codes, &made.scales, &made.logits}) {
          const auto at = std::ssize(bytes);
          bytes.resize(at + out->size_bytes());
          cuda::copy(bytes.data() + at, out->data(), out->size_bytes());
        }
        return bytes;
      };
      std::vector<Made> apart, joined;
      for (auto& rank : ranks) apart.push_back(makes(*rank));
      for (auto& rank : ranks)
        gpu::all_reduce_blocks(rank->cx, rank->peers, rank->tensor(tokens, hidden));
      for (auto& rank : ranks) {
        rank->stream.wait();
        const auto [norm, gate] = norm_of(*rank, apart[rank->peers.rank]);
        gpu::add_norm(rank->cx, norm, gate);
        rank->stream.wait();
      }
      for (auto& rank : ranks) joined.push_back(makes(*rank));
      for (int again = 0; again < 2; ++again)  // x and d stay, so that the same comes out
        for (auto& rank : ranks) {
          const auto [norm, gate] = norm_of(*rank, joined[rank->peers.rank]);
          gpu::add_norm_over_ranks(rank->cx, rank->peers, norm, gate);
        }
      for (auto& rank : ranks) {
        rank->stream.wait();
        EXPECT_EQ(bytes_of(apart[rank->peers.rank]), bytes_of(joined[rank->peers.rank]))
            << size << " ranks, " << tokens << " x " << hidden << ", rank " << rank->peers.rank;
      }
    }
}

// So do those that make sums: whoever waits for rows, or for a rank to have read them.
class NormsOverRanks : public testing::TestWithParam<int64_t> {};
TEST_P(NormsOverRanks, EndWithoutARankThatIsGone) {
  constexpr int64_t kHidden = 2880;
  const int64_t tokens = GetParam(), values = tokens * kHidden;
  Ranks ranks(2);
  Rank& rank = ranks[0];
  rank.peers.patience_ns = 100'000'000;
  Buffer x = cuda::device_buffer(4 * values), y = cuda::device_buffer(4 * values),
         h = cuda::device_buffer(2 * values), weight = cuda::device_buffer(2 * kHidden);
  for (Buffer* zeros : {&x, &weight, &rank.values})
    cuda::fill(zeros->data(), 0, zeros->size_bytes());
  for (int again = 0; again < 3; ++again) {
    cuda::fill(h.data(), 0, h.size_bytes());
    gpu::add_norm_over_ranks(
        rank.cx, rank.peers,
        {.y = static_cast<float*>(y.data()),
         .h = static_cast<uint16_t*>(h.data()),
         .x = static_cast<const float*>(x.data()),
         .d = static_cast<const float*>(rank.values.data()),
         .norm = {.weight = static_cast<const uint16_t*>(weight.data()), .eps = 1e-5f},
         .tokens = tokens,
         .hidden = kHidden},
        {});
    rank.stream.wait();
    std::vector<uint16_t> got(values);
    cuda::copy(got.data(), h.data(), 2 * values);
    for (int64_t i = 0; i < values; ++i)
      ASSERT_TRUE(std::isnan(bf16_to_float(got[i]))) << again << ", value " << i;
  }
}
// Blocks that send and receive, and blocks that do one of both.
INSTANTIATE_TEST_SUITE_P(OneShotGpu, NormsOverRanks, testing::Values(40, 300));

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
      cuda::copy(counts, rank->counts.data(), sizeof(counts));
      EXPECT_EQ(counts[0], static_cast<uint32_t>(kSums * kReplays));
      EXPECT_EQ(counts[1], 0u);
      float first = 0;  // grows by the number of ranks each time, up to infinity
      cuda::copy(&first, rank->values.data(), 4);
      EXPECT_TRUE(std::isinf(first));
    }
  }
}

// A rank that does not come: the others end with NaN, at once where they are told, else by the
// clock, and all that comes behind it at once.
TEST(OneShotGpu, EndsWithoutARankThatIsGone) {
  for (SumFn* const sum : {gpu::all_reduce_one_shot, gpu::all_reduce_blocks})
    for (const bool is_told : {false, true}) {
      Ranks ranks(3);
      for (const size_t r : {0, 2})  // numbers, which no NaN comes of
        cuda::fill(ranks[r].values.data(), 0, 4 * 2880);
      for (const size_t r : {0, 2}) {
        if (!is_told) ranks[r].peers.patience_ns = 100'000'000;
        for (int i = 0; i < 3; ++i) sum(ranks[r].cx, ranks[r].peers, ranks[r].tensor(1, 2880));
      }
      if (is_told) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ranks.abort();
      }
      for (const size_t r : {0, 2}) {
        ranks[r].stream.wait();
        std::vector<float> got(2880);
        cuda::copy(got.data(), ranks[r].values.data(), 4 * 2880);
        for (const float value : got) ASSERT_TRUE(std::isnan(value));
      }
    }
}

}  // namespace
}  // namespace nibble::ops
