// Ranks each of which has some columns of every row draw what one draws that has them all: the same
// ids and the same bits of log-probabilities, on each.
#include "ops/sample/draw_over_ranks_gpu_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/memory.h"
#include "ops/gpu_test_problem.h"

namespace nibble::ops {
namespace {

constexpr int64_t kCapacity = 64;   // floats of packets, which nobody sends here
constexpr int32_t kUnwritten = -7;  // no id, and not what says that there is none

struct Problem {
  int64_t rows, vocab;
  Floats logits;
  std::vector<uint32_t> never;
  std::vector<Draw> draws;

  Problem(std::mt19937& random, int64_t r, int64_t v) : rows(r), vocab(v), logits(r, v) {
    const auto any_of = [&](std::initializer_list<float> all) {
      return all.begin()[random() % all.size()];
    };
    std::normal_distribution<float> normal(0, 3);
    for (int64_t row = 0; row < rows; ++row) {
      const float steps = any_of({0, 2, 1e4f});  // 0: all are equal
      for (int64_t i = 0; i < vocab; ++i)
        logits.values[row * vocab + i] =
            steps == 0 ? -0.0f : std::round(normal(random) * steps) / steps;
      const float top_k = any_of({0, 0, 1, 40, 300, static_cast<float>(vocab) + 5});
      draws.push_back({.temperature = any_of({0, 0.3f, 1, 1, 4}),
                       .min_p = any_of({0, 0, 0.05f}),
                       .top_p = any_of({1, 1, 0.9f, 0.2f, 0.99999f}),
                       .top_k = static_cast<int32_t>(top_k),
                       .u = std::uniform_real_distribution<double>(0, 1)(random)});
    }
    draws[0].u = 0, draws[0].temperature = 1;
    logits.values[3 * vocab + random() % vocab] = NAN;
    draws[3].temperature = 1;
    if (random() % 2 == 0) return;
    never.resize((vocab + 31) / 32);
    for (uint32_t& word : never) word = static_cast<uint32_t>(random() & random());
  }
};

// Where each rank's columns begin, and V: some may have none.
std::vector<int64_t> random_cuts(std::mt19937& random, int ranks, int64_t vocab) {
  std::vector<int64_t> begins{0, vocab};
  for (int r = 1; r < ranks; ++r) begins.push_back(static_cast<int64_t>(random() % (vocab + 1)));
  std::ranges::sort(begins);
  return begins;
}

class Drawing {
 public:
  Drawing(const Problem& p, const std::vector<int64_t>& begins)
      : gpu(gpu::sample_scratch_bytes(p.rows)), p_(p) {
    *static_cast<uint32_t*>(abort_.data()) = 0;
    never_ = gpu.array(p.never);
    const int ranks = static_cast<int>(begins.size()) - 1;
    gpu::PeerMemory peers{.size = ranks, .capacity = kCapacity};
    std::vector<void*> memory;
    for (int r = 0; r < ranks; ++r)
      memory.push_back(const_cast<uint8_t*>(gpu.array(std::vector<uint8_t>(peers.bytes()))));
    for (int r = 0; r < ranks; ++r) {
      peers.rank = r;
      peers.counts =
          const_cast<uint32_t*>(gpu.array(std::vector<uint32_t>(gpu::PeerMemory::kCounts)));
      peers.abort = static_cast<uint32_t*>(abort_.data());
      for (int of = 0; of < ranks; ++of) peers.set_memory(of, memory[of]);
      std::vector<float> mine;
      for (int64_t row = 0; row < p.rows; ++row) {
        const auto* const at = p.logits.values.data() + row * p.vocab;
        mine.insert(mine.end(), at + begins[r], at + begins[r + 1]);
      }
      ranks_.push_back({.out = output(static_cast<int32_t>(begins[r])),
                        .logits = gpu.array(mine),
                        .columns = begins[r + 1] - begins[r],
                        .peers = peers});
    }
  }
  void abort() { *static_cast<volatile uint32_t*>(abort_.data()) = 1; }

  // By a rank that has all.
  std::vector<Greedy> alone(const std::vector<Draw>& draws) {
    const GreedyOut out = output(0);
    const Tensor logits = gpu.tensor(p_.logits, DType::kF32);
    sample_greedy(gpu.cx, out, logits, never_);
    sample_drawn(gpu.cx, out, logits, never_, gpu.array(draws));
    return found(out);
  }
  // Behind alone(), which leaves what join_greedy does. By the ranks from `first` on.
  void together(const std::vector<Draw>& draws, int first = 0) {
    const SamplePart* const parts = SampleScratch(Scratch(gpu.cx.scratch), p_.rows).parts;
    draw_on_every_rank(gpu.cx, gpu.array(ranks_) + first, static_cast<int>(ranks_.size()) - first,
                       parts, never_, gpu.array(draws), p_.rows);
  }
  std::vector<Greedy> found(int rank) { return found(ranks_[rank].out); }

 private:
  GreedyOut output(int32_t first_id) {
    const std::vector<int32_t> turn = {0};
    const std::vector<Greedy> nothing(p_.rows, {kUnwritten, 0});
    return {.rows = const_cast<Greedy*>(gpu.array(nothing)),
            .stride = p_.rows,
            .turn = gpu.array(turn),
            .ids = gpu.output(DType::kI32, {p_.rows}).as<int32_t>(),
            .first_id = first_id};
  }
  std::vector<Greedy> found(const GreedyOut& out) {
    const auto rows = gpu.values<Greedy>(out.rows, p_.rows);
    const auto ids = gpu.values<int32_t>(out.ids, p_.rows);
    for (int64_t r = 0; r < p_.rows; ++r) {
      if (rows[r].id < 0) continue;  // or nothing is written
      EXPECT_EQ(ids[r], rows[r].id);
    }
    return rows;
  }

  GpuProblem gpu;
  const Problem& p_;
  Buffer abort_ = cuda::pinned_buffer(4);
  const uint32_t* never_;
  std::vector<RankDraws> ranks_;
};

TEST(DrawOverRanksGpu, IsWhatOneRankDrawsThatHasTheWholeRow) {
  std::mt19937 random(3);
  for (const int ranks : {2, 3, 8})
    for (const int64_t vocab : {int64_t{61}, int64_t{700}, int64_t{20000}}) {
      if (is_too_slow(40 * vocab)) continue;
      Problem p(random, 40, vocab);
      Drawing drawing(p, random_cuts(random, ranks, vocab));
      for (int turn = 0; turn < 3; ++turn) {  // the numbers of blocks go on
        for (Draw& draw : p.draws) draw.u = std::fmod(draw.u + 0.37 * turn, 1.0);
        const std::vector<Greedy> want = drawing.alone(p.draws);
        EXPECT_EQ(want[3].id, Greedy::kNotFinite);
        drawing.together(p.draws);
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<Greedy> got = drawing.found(rank);
          for (int64_t r = 0; r < p.rows; ++r) {
            if (p.draws[r].temperature == 0) continue;  // nothing is written
            const Draw& d = p.draws[r];
            EXPECT_EQ(std::memcmp(&got[r], &want[r], sizeof(Greedy)), 0)
                << ranks << " ranks, rank " << rank << ", " << vocab << " ids, row " << r << ": id "
                << got[r].id << ", not " << want[r].id << "; temperature " << d.temperature
                << " top_k " << d.top_k << " top_p " << d.top_p << " min_p " << d.min_p << " u "
                << d.u;
          }
        }
      }
    }
}

// The others end, and say of each row that it has no id.
TEST(DrawOverRanksGpu, EndsWithoutARankThatIsGone) {
  std::mt19937 random(4);
  Problem p(random, 12, 100);
  Drawing drawing(p, {0, 40, 70, 100});
  const std::vector<Greedy> whole = drawing.alone(p.draws);
  drawing.abort();
  drawing.together(p.draws, /*first=*/1);
  for (const int rank : {1, 2}) {
    const std::vector<Greedy> got = drawing.found(rank);
    for (int64_t r = 0; r < p.rows; ++r) {
      if (p.draws[r].temperature == 0 || whole[r].id < 0) continue;
      EXPECT_EQ(got[r].id, Greedy::kNotFinite) << "rank " << rank << ", row " << r;
    }
  }
}

}  // namespace
}  // namespace nibble::ops
