#include "ops/sample/sample.h"

#include <gtest/gtest.h>

#include "ops/gpu_test_problem.h"

namespace nibble::ops {
namespace {

struct Problem {
  Problem(int64_t rows, int64_t vocab, uint32_t seed) : random(seed), logits(random, rows, vocab) {
    for (float& x : logits.values) x *= 8;
  }
  std::vector<Greedy> twin() {
    std::vector<Greedy> out(logits.shape[0]);
    Ctx cx;
    const int32_t turn = 0;
    ref::sample_greedy(
        cx, {.rows = out.data(), .stride = logits.shape[0], .turn = &turn, .first_id = first_id},
        logits.tensor(), never.empty() ? nullptr : never.data());
    return out;
  }
  std::vector<Greedy> on_gpu(GpuProblem& gpu) {
    const int64_t rows = logits.shape[0];
    const Tensor out = gpu.output(DType::kI32, {2 * (rows + 1), 2});
    const Tensor ids = gpu.output(DType::kI32, {rows});
    auto* to = reinterpret_cast<Greedy*>(out.as<int32_t>());
    const std::vector<int32_t> turn = {1};
    gpu::sample_greedy(gpu.cx, {to, rows + 1, gpu.array(turn), ids.as<int32_t>(), first_id},
                       gpu.tensor(logits, DType::kF32), gpu.array(never));
    std::vector<Greedy> all = gpu.values<Greedy>(to, 2 * (rows + 1));
    const std::vector<int32_t> fed = gpu.values<int32_t>(ids.data, rows);
    for (int64_t r = 0; r <= rows; ++r) EXPECT_EQ(all[r].id, -1);  // the other turn's
    all.erase(all.begin(), all.begin() + rows + 1);
    for (int64_t r = 0; r < rows; ++r) EXPECT_EQ(fed[r], std::max(0, all[r].id));
    all.pop_back();
    return all;
  }
  Random random;
  Floats logits;
  std::vector<uint32_t> never;
  int32_t first_id = 0;
};

// The sum of V exponentials, each within 2 units of float32 (__expf of a difference up to 80 in
// magnitude errs by 2^-21 relative), of which a tree of depth log2(V) adds a rounding each: within
// 1e-5 of the logarithm; the difference of two logits rounds once more.
void expect_same(const std::vector<Greedy>& got, const std::vector<Greedy>& want) {
  for (size_t r = 0; r < want.size(); ++r) {
    EXPECT_EQ(got[r].id, want[r].id) << r;
    EXPECT_NEAR(got[r].logprob, want[r].logprob, 2e-5 + 1e-6 * std::fabs(want[r].logprob)) << r;
  }
}

TEST(SampleGpu, EqualsTheTwin) {
  for (const auto& [rows, vocab] : {std::pair<int64_t, int64_t>{1, 201088},
                                    {5, 3072},
                                    {3, 7},
                                    {64, 1000},
                                    {300, 20000},
                                    {2, 33}}) {
    GpuProblem gpu(gpu::sample_scratch_bytes(rows));
    Problem p(rows, vocab, static_cast<uint32_t>(vocab));
    expect_same(p.on_gpu(gpu), p.twin());
    // The best id may not come: another is found, under the same distribution; of the columns from
    // 77 on, too.
    p.first_id = static_cast<int32_t>(vocab % 2) * 77;
    p.never.resize((p.first_id + vocab + 31) / 32);
    const int32_t best = p.twin()[0].id;
    p.never[best / 32] |= 1u << (best % 32);
    expect_same(p.on_gpu(gpu), p.twin());
    EXPECT_NE(p.twin()[0].id, best);
    EXPECT_TRUE(gpu.counters_are_zero());
  }
}

TEST(SampleGpu, TakesTheLowestOfEquals) {
  GpuProblem gpu(gpu::sample_scratch_bytes(1));
  Problem p(1, 5000, 1);
  for (const int64_t at : {4999, 4000, 17, 170}) p.logits.values[at] = 100;
  EXPECT_EQ(p.on_gpu(gpu)[0].id, 17);
}

TEST(SampleGpu, TellsRowsThatAreNotNumbers) {
  GpuProblem gpu(gpu::sample_scratch_bytes(4));
  Problem p(4, 900, 2);
  p.logits.values[5] = NAN;
  p.logits.values[900 + 899] = INFINITY;
  p.logits.values[3 * 900] = -INFINITY;
  const std::vector<Greedy> got = p.on_gpu(gpu);
  EXPECT_EQ(got[0].id, Greedy::kNotFinite);
  EXPECT_EQ(got[1].id, Greedy::kNotFinite);
  EXPECT_GE(got[2].id, 0);
  EXPECT_EQ(got[3].id, Greedy::kNotFinite);
  p.never.assign(29, ~0u);
  EXPECT_EQ(p.on_gpu(gpu)[2].id, Greedy::kNone);
}

}  // namespace
}  // namespace nibble::ops
