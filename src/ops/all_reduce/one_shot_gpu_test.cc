// Ranks of one GPU: a stream and memory of its own for each, as GPUs of one host would have. What a
// link costs does not show here; order, slots and the end without an answer do.
#include "ops/all_reduce/one_shot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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
#include "ops/gpu_matmul/gemm_dense_sm90.h"
#include "ops/gpu_test_problem.h"
#include "ops/moe_down/combine.h"
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
  explicit Ranks(int size, int64_t row_bytes = kRowBytes) {
    *static_cast<uint32_t*>(abort_.data()) = 0;
    for (int r = 0; r < size; ++r) {
      Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>());
      rank.cx.stream = rank.stream.handle();
      rank.peers = {.rank = r,
                    .size = size,
                    .capacity = kCapacity,
                    .row_bytes = row_bytes,
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

// Norms of [tokens, hidden]: what they read but d, and what each rank's leaves.
class Norms {
 public:
  Norms(const Shape& shape, bool e4m3, bool has_gate)
      : tokens_(shape.first), hidden_(shape.second), e4m3_(e4m3), has_gate_(has_gate) {
    const std::vector<float> residual = random_values(1, tokens_ * hidden_);
    const std::vector<uint16_t> weights(2 * hidden_, bf16_from_float(0.75f));
    cuda::copy(x_.data(), residual.data(), x_.size_bytes());
    cuda::copy(weights_.data(), weights.data(), weights_.size_bytes());
  }
  struct Made {
    Buffer y, h, codes, scales, logits;
  };
  Made make() const {
    const int64_t n = tokens_ * hidden_;
    Made made{cuda::device_buffer(4 * n), cuda::device_buffer(2 * n), cuda::device_buffer(n),
              cuda::device_buffer(4 * tokens_), cuda::device_buffer(4 * tokens_)};
    for (Buffer* out : all(made)) cuda::fill(out->data(), 0, out->size_bytes());
    return made;
  }
  std::pair<gpu::AddNorm, gpu::GateLogits> of(Made& made, const Buffer& d) const {
    const auto* weight = static_cast<const uint16_t*>(weights_.data());
    return {{.y = static_cast<float*>(made.y.data()),
             .h = static_cast<uint16_t*>(made.h.data()),
             .x = static_cast<const float*>(x_.data()),
             .d = static_cast<const float*>(d.data()),
             .norm = {.weight = weight, .eps = 1e-5f},
             .tokens = tokens_,
             .hidden = hidden_,
             .e4m3 = {e4m3_ ? static_cast<uint8_t*>(made.codes.data()) : nullptr,
                      static_cast<float*>(made.scales.data())}},
            {has_gate_ ? weight + hidden_ : nullptr, static_cast<float*>(made.logits.data())}};
  }
  static std::vector<std::byte> bytes_of(Made& made) {
    std::vector<std::byte> bytes;
    for (Buffer* out : all(made)) {
      const auto at = std::ssize(bytes);
      bytes.resize(at + out->size_bytes());
      cuda::copy(bytes.data() + at, out->data(), out->size_bytes());
    }
    return bytes;
  }

 private:
  static std::array<Buffer*, 5> all(Made& made) {
    return {&made.y, &made.h, &made.codes, &made.scales, &made.logits};
  }
  int64_t tokens_, hidden_;
  bool e4m3_, has_gate_;
  Buffer x_ = cuda::device_buffer(4 * tokens_ * hidden_),
         weights_ = cuda::device_buffer(4 * hidden_);
};

// By a sum and a norm behind it, of each rank's values, which are left as that sum.
std::vector<std::vector<std::byte>> made_apart(Ranks& ranks, const Norms& norms,
                                               const Shape& shape) {
  std::vector<std::vector<std::byte>> bytes;
  for (auto& rank : ranks)
    gpu::all_reduce_blocks(rank->cx, rank->peers, rank->tensor(shape.first, shape.second));
  for (auto& rank : ranks) {
    rank->stream.wait();
    Norms::Made made = norms.make();
    const auto [norm, gate] = norms.of(made, rank->values);
    gpu::add_norm(rank->cx, norm, gate);
    rank->stream.wait();
    bytes.push_back(Norms::bytes_of(made));
  }
  return bytes;
}
template <typename Norm>
std::vector<std::vector<std::byte>> made_joined(Ranks& ranks, const Norms& norms,
                                                const Norm& run_norm) {
  std::vector<Norms::Made> made;
  for (auto rank = ranks.begin(); rank != ranks.end(); ++rank) made.push_back(norms.make());
  for (auto& rank : ranks) {  // which wait for each other: nothing between may wait for one
    const auto [norm, gate] = norms.of(made[rank->peers.rank], rank->values);
    run_norm(*rank, norm, gate);
  }
  std::vector<std::vector<std::byte>> bytes;
  for (auto& rank : ranks) {
    rank->stream.wait();
    bytes.push_back(Norms::bytes_of(made[rank->peers.rank]));
  }
  return bytes;
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
      const Norms norms({tokens, hidden}, tokens % 2 != 0, tokens % 4 != 3);
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<float>> parts;
        for (int r = 0; r < size; ++r)
          parts.push_back(random_values(100 * round + r, tokens * hidden));
        const auto fill = [&] {
          for (auto& rank : ranks)
            cuda::copy(rank->values.data(), parts[rank->peers.rank].data(), 4 * tokens * hidden);
        };
        fill();
        const auto want = made_apart(ranks, norms, {tokens, hidden});
        fill();
        EXPECT_EQ(made_joined(ranks, norms,
                              [](Rank& rank, const auto& norm, const auto& gate) {
                                gpu::add_norm_over_ranks(rank.cx, rank.peers, norm, gate);
                              }),
                  want)
            << size << " ranks, " << tokens << " x " << hidden;
      }
    }
}

// A product that sends its rows leaves the norm the same bits: of a last item that is not whole, of
// 8 columns a thread and of more.
TEST(OneShotGpu, ProductsSendWhatNormsAddUp) {
  const decltype(&gpu::gemm_over_ranks) send = NIBBLE_SM90_KERNEL(gpu::gemm_over_ranks);
  const decltype(&gpu::gemm_dense) multiply = NIBBLE_SM90_KERNEL(gpu::gemm_dense);
  if (cuda::open_device().sm != 90) GTEST_SKIP() << "by wgmma alone";
  constexpr int64_t kWidth = 192;
  for (const int size : {2, 3})
    for (const auto& [tokens, hidden] : {Shape{1100, 2880}, {1381, 4128}, {300, 1024}}) {
      Ranks ranks(size, 2 * tokens * hidden);
      const Norms norms({tokens, hidden}, tokens % 2 != 0, tokens % 4 != 0);
      for (int round = 0; round < 3; ++round) {
        Random random(static_cast<uint32_t>(round));
        GpuProblem memory;
        std::vector<Weight> weights;
        std::vector<const uint16_t*> x;
        for (auto& rank : ranks) {
          TestWeight w(random, Format::kBF16, 1, hidden, kWidth);
          weights.push_back(memory.weight(w));
          if (rank->peers.rank > 0) weights.back().bias = nullptr;
          const Floats in(random, tokens, kWidth, DType::kBF16);
          x.push_back(memory.tensor(in, DType::kBF16).as<uint16_t>());
          rank->cx.kernels.gpu = memory.cx.kernels.gpu;
        }
        for (auto& rank : ranks)
          multiply(rank->cx, weights[rank->peers.rank], gpu::GemmOut::kF32,
                   {.x = x[rank->peers.rank],
                    .y = rank->values.data(),
                    .num_slots = static_cast<int32_t>(tokens)});
        const auto want = made_apart(ranks, norms, {tokens, hidden});
        for (auto& rank : ranks) {  // which have no room beside another one's norm
          send(rank->cx, rank->peers, weights[rank->peers.rank], x[rank->peers.rank], tokens,
               static_cast<uint16_t*>(rank->values.data()));
          rank->stream.wait();
        }
        EXPECT_EQ(made_joined(ranks, norms,
                              [](Rank& rank, const auto& norm, const auto& gate) {
                                gpu::add_norm_of_sent(rank.cx, rank.peers, norm, gate);
                              }),
                  want)
            << size << " ranks, " << tokens << " x " << hidden;
      }
    }
}

// So do the rows of choices that moe_down leaves, in one exchange and in pieces.
TEST(OneShotGpu, NormsAddUpChoices) {
  struct Choices {
    int size;
    Shape shape;
    int32_t top_k;
  };
  for (const auto& [size, shape, top_k] :
       {Choices{2, {515, 2880}, 4}, {3, {1001, 2880}, 4}, {2, {523, 4096}, 11}}) {
    const auto [tokens, hidden] = shape;
    Ranks ranks(size);
    const Norms norms(shape, tokens % 4 != 3, tokens % 4 != 1);
    Random random(1);
    GpuProblem memory;
    std::vector<gpu::LeftChoices> choices;
    for (auto& rank : ranks) {
      TestRouting routing(tokens, 32, top_k);
      routing.randomize(random);
      const Floats rows(random, tokens * top_k, hidden, DType::kBF16);
      const Routing r = memory.routing(routing);
      choices.push_back({memory.tensor(rows, DType::kBF16).as<uint16_t>(), r.p, r.slot, top_k});
      gpu::combine(rank->cx, rank->tensor(tokens, hidden), choices.back().rows, r);
    }
    const auto want = made_apart(ranks, norms, shape);
    for (int again = 0; again < 2; ++again)
      EXPECT_EQ(made_joined(ranks, norms,
                            [&](Rank& rank, const auto& norm, const auto& gate) {
                              gpu::add_norm_of_choices(rank.cx, rank.peers, norm, gate,
                                                       choices[rank.peers.rank]);
                            }),
                want)
          << size << " ranks, " << tokens << " x " << hidden << " by " << top_k;
  }
}

// Norms that make sums of rows that do not come leave NaN.
struct Case {
  int64_t tokens;
  enum { kFloats, kSent, kChoices } part;
};
class NormsOverRanks : public testing::TestWithParam<Case> {};
TEST_P(NormsOverRanks, EndWithoutARankThatIsGone) {
  constexpr int64_t kHidden = 2880;
  const auto [tokens, part] = GetParam();
  const int64_t values = tokens * kHidden;
  Ranks ranks(2);
  Rank& rank = ranks[0];
  rank.peers.patience_ns = 100'000'000;
  Buffer x = cuda::device_buffer(4 * values), y = cuda::device_buffer(4 * values),
         h = cuda::device_buffer(2 * values), weight = cuda::device_buffer(2 * kHidden);
  for (Buffer* zeros : {&x, &weight, &rank.values})
    cuda::fill(zeros->data(), 0, zeros->size_bytes());
  for (int again = 0; again < 3; ++again) {
    cuda::fill(h.data(), 0, h.size_bytes());
    const gpu::AddNorm norm{
        .y = static_cast<float*>(y.data()),
        .h = static_cast<uint16_t*>(h.data()),
        .x = static_cast<const float*>(x.data()),
        .d = static_cast<const float*>(rank.values.data()),
        .norm = {.weight = static_cast<const uint16_t*>(weight.data()), .eps = 1e-5f},
        .tokens = tokens,
        .hidden = kHidden};
    if (part == Case::kFloats) gpu::add_norm_over_ranks(rank.cx, rank.peers, norm, {});
    if (part == Case::kSent) gpu::add_norm_of_sent(rank.cx, rank.peers, norm, {});
    if (part == Case::kChoices)
      gpu::add_norm_of_choices(rank.cx, rank.peers, norm, {},
                               {.rows = static_cast<const uint16_t*>(x.data()),
                                .p = static_cast<const float*>(x.data()),
                                .slot = static_cast<const int32_t*>(x.data()),
                                .top_k = 2});
    rank.stream.wait();
    std::vector<uint16_t> got(values);
    cuda::copy(got.data(), h.data(), 2 * values);
    for (int64_t i = 0; i < values; ++i)
      ASSERT_TRUE(std::isnan(bf16_to_float(got[i]))) << again << ", value " << i;
  }
}
// Blocks that send and receive, blocks that do one of both, and blocks that receive.
INSTANTIATE_TEST_SUITE_P(OneShotGpu, NormsOverRanks,
                         testing::Values(Case{40, Case::kFloats}, Case{300, Case::kFloats},
                                         Case{300, Case::kSent}, Case{300, Case::kChoices}));

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
