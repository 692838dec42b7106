#include "ops/mamba2/mamba2.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "ops/mamba2/mamba2_test_problem.h"

namespace nibble::ops {
namespace {

std::string name_of(const Mamba2Kernel& row, const Mamba2Desc& d) {
  return std::string(row.name) + ", " + std::to_string(d.heads) + " heads in " +
         std::to_string(d.groups) + ", " + std::to_string(d.state_dim) + " by " +
         std::to_string(d.head_dim);
}

void check(const Mamba2Desc& desc, const std::vector<MambaSpan>& spans) {
  const auto make = [&] {
    Random random(static_cast<uint32_t>(desc.head_dim));
    return std::make_unique<MambaProblem>(random, desc, spans, /*eps=*/1.f);
  };
  const auto want = make();
  TestCtx twin(DType::kF32, 0);
  want->run(twin.cx, ref::mamba2);
  const MambaBounds bounds = mamba_bounds(*want);
  TestCtx test(DType::kF32, scratch_bytes(want->desc, want->desc.tokens, 2));
  for (const Mamba2Kernel* row : kernels_here(mamba2_kernels(), want->desc)) {
    const auto got = make();
    got->run(test.cx, row->run);
    for (size_t i = 0; i < want->att.size(); ++i)
      ASSERT_NEAR(got->att[i], want->att[i], bounds.att) << name_of(*row, desc) << ", " << i;
    ASSERT_LE(rms_off(got->att, want->att), bounds.att_rms) << name_of(*row, desc);
    for (size_t i = 0; i < want->states.size(); ++i)  // those of `from` as they were
      ASSERT_NEAR(got->states[i], want->states[i], bounds.state) << name_of(*row, desc);
    ASSERT_EQ(got->convs, want->convs) << name_of(*row, desc);
    const auto again = make();
    again->run(test.cx, row->run);
    ASSERT_EQ(again->att, got->att);
    ASSERT_EQ(again->states, got->states);
  }
}

TEST(Mamba2, EveryKernelEqualsTheTwin) {
  for (const Mamba2Desc& desc : mamba_descs()) {
    check(desc, {{1, false}});
    check(desc, {{1, true}, {1, true}, {1, false}});
    check(desc, {{2, true}, {70, false}, {1, true}, {5, true}});
  }
}

// The norm with the eps of models: outputs are as large as its weights.
TEST(Mamba2, ASmallEpsInTheNorm) {
  Random random(5), same(5);
  const Mamba2Desc& desc = mamba_descs()[1];
  MambaProblem want(random, desc, {{9, true}}), got(same, desc, {{9, true}});
  TestCtx twin(DType::kF32, 0), test(DType::kF32, scratch_bytes(got.desc, 9, 2));
  want.run(twin.cx, ref::mamba2);
  for (const Mamba2Kernel* row : kernels_here(mamba2_kernels(), got.desc)) {
    got.run(test.cx, row->run);
    for (size_t i = 0; i < want.att.size(); ++i)
      ASSERT_NEAR(got.att[i], want.att[i], 1e-4) << row->name;
  }
}

// A text cut anywhere leaves the same bits: outputs, states and kept inputs.
TEST(Mamba2, TheSameBitsHoweverATextIsCut) {
  const Mamba2Desc& desc = mamba_descs()[0];
  constexpr int32_t kTokens = 75;
  for (const int32_t piece : {1, 2, 7, 64}) {
    Random random(9);
    MambaProblem whole(random, desc, {{kTokens, false}});
    for (const Mamba2Kernel* row : kernels_here(mamba2_kernels(), whole.desc)) {
      TestCtx test(DType::kF32, scratch_bytes(whole.desc, kTokens, 2));
      whole.run(test.cx, row->run);
      Random again(9);
      MambaProblem cut(again, desc, {{kTokens, false}});
      for (int32_t first = 0; first < kTokens; first += piece) {
        const int32_t tokens = std::min(piece, kTokens - first);
        const Span span{0, tokens, first, 0};
        const Step step{.num_tokens = tokens, .num_spans = 1, .spans = &span};
        cut.to[0] = cut.from[0] == 1 ? 0 : 1;
        row->run(test.cx, cut.out(first, tokens), cut.layer(), cut.in(first, tokens), cut.desc,
                 cut.weights, step);
        cut.from[0] = cut.to[0];
      }
      ASSERT_EQ(cut.att, whole.att) << row->name << " " << piece;
      ASSERT_TRUE(std::equal(cut.left(0), cut.left(0) + desc.state_size(), whole.left(0)));
      ASSERT_TRUE(std::equal(cut.kept(0), cut.kept(0) + desc.conv_size(), whole.kept(0)));
    }
  }
}

// Spans that end before the next one begins, and before the step does: the states are those of a
// text that ends there, and no other sequence is touched.
TEST(Mamba2, SpansMayBeCutShort) {
  const Mamba2Desc& desc = mamba_descs()[0];
  const std::vector<MambaSpan> sequences = {{8, true}, {3, false}, {8, true}};
  for (const Mamba2Kernel* row : kernels_here(mamba2_kernels(), desc))
    for (const int32_t kept : {1, 2, 5, 8}) {
      Random random(11);
      MambaProblem cut(random, desc, sequences);
      cut.spans[0].q_len = cut.spans[2].q_len = kept;
      TestCtx test(DType::kF32, scratch_bytes(cut.desc, cut.desc.tokens, 2));
      cut.run(test.cx, row->run);
      for (int32_t i = 0; i < 3; ++i) {
        Random same(11);
        MambaProblem alone(same, desc, sequences);
        Span span = cut.spans[i];
        const int32_t first = std::exchange(span.q_start, 0);
        const Step step{.num_tokens = span.q_len, .num_spans = 1, .spans = &span};
        row->run(test.cx, alone.out(first, span.q_len), alone.layer(), alone.in(first, span.q_len),
                 alone.desc, alone.weights, step);
        ASSERT_TRUE(std::equal(cut.left(i), cut.left(i) + desc.state_size(), alone.left(i)))
            << row->name << ", " << kept << " of " << i;
        ASSERT_TRUE(std::equal(cut.kept(i), cut.kept(i) + desc.conv_size(), alone.kept(i)))
            << row->name << ", " << kept << " of " << i;
      }
    }
}

// Tokens of other sequences in the step change nothing.
TEST(Mamba2, TheSameBitsAloneAndInABatch) {
  const Mamba2Desc& desc = mamba_descs()[3];
  Random random(3);
  MambaProblem batch(random, desc, {{3, true}, {6, true}});
  for (const Mamba2Kernel* row : kernels_here(mamba2_kernels(), batch.desc)) {
    TestCtx test(DType::kF32, scratch_bytes(batch.desc, 9, 2));
    batch.run(test.cx, row->run);
    const std::vector<float> together = batch.att,
                             left(batch.left(1), batch.left(1) + desc.state_size());
    const Span span{0, 6, 7, 1};
    const Step step{.num_tokens = 6, .num_spans = 1, .spans = &span};
    row->run(test.cx, batch.out(3, 6), batch.layer(), batch.in(3, 6), batch.desc, batch.weights,
             step);
    ASSERT_EQ(batch.att, together) << row->name;
    ASSERT_TRUE(std::equal(left.begin(), left.end(), batch.left(1))) << row->name;
  }
}

// Decays that vanish and steps of any size are numbers.
TEST(Mamba2, ExtremeSteps) {
  Random random(4);
  MambaProblem p(random, mamba_descs()[0], {{4, true}});
  for (int64_t t = 0; t < 4; ++t)
    for (int64_t h = 0; h < p.desc.heads; ++h)
      p.inputs[t * p.desc.width() + p.desc.dt() + h] = (t + h) % 2 == 0 ? 500.f : -500.f;
  TestCtx test(DType::kF32, scratch_bytes(p.desc, 4, 2));
  for (const Mamba2Kernel* row : kernels_here(mamba2_kernels(), p.desc)) {
    p.run(test.cx, row->run);
    for (const float x : p.att) ASSERT_TRUE(std::isfinite(x)) << row->name;
    for (const float x : p.states) ASSERT_TRUE(std::isfinite(x)) << row->name;
  }
}

// The twin of one head by hand, with dt at its limit and without.
TEST(Mamba2, ByHand) {
  for (const float most : {1e30f, 0.5f}) {
    const Mamba2Desc desc{1, 1, 1, 1, 1, 0, most};
    const float conv[] = {1, 1, 1}, bias[] = {0, 0, 1}, a_log = 0, skip = 3, dt_bias = 1, norm = 2;
    float in[] = {2, 3, 1, 1, -1}, att = 0, state[] = {4, 0}, none = 0;  // z, x, B, C, dt
    const int32_t from = 0, to = 1;
    const Span span{0, 1, 5, 0};
    const Step step{.num_tokens = 1, .num_spans = 1, .spans = &span};
    TestCtx twin(DType::kF32, 0);
    const RecurrentLayer layer{.state = make_tensor(state, DType::kF32, {2, 1, 1, 1}),
                               .conv = make_tensor(&none, DType::kF32, {2, 0, 3}),
                               .from = &from,
                               .to = &to};
    ref::mamba2(twin.cx, make_tensor(&att, DType::kF32, {1, 1}), layer,
                make_tensor(in, DType::kF32, {1, 5}), desc,
                {conv, bias, &a_log, &skip, &dt_bias, &norm, 3}, step);
    const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
    // dt = softplus(0) = ln 2, or 1/2; decay = exp(-dt).
    const double dt = most < 1 ? 0.5 : std::log(2);
    const double s = std::exp(-dt) * 4 + silu(1) * dt * silu(3);
    const double gated = (s * silu(2) + 3 * silu(3)) * silu(2);
    EXPECT_NEAR(state[1], s, 1e-5);
    EXPECT_EQ(state[0], 4);
    EXPECT_NEAR(att, 2 * gated / std::sqrt(gated * gated + 3), 1e-5);
  }
}

TEST(Mamba2, PromptsGoByChunksUnlessTheirBitsAreAskedFor) {
  KernelOptions options;
  options.gpu = cuda::h200();
  const auto row_of = [&](int64_t tokens) {
    Mamba2Desc desc{64, 8, 64, 128, 4};
    desc.tokens = tokens;
    return std::string_view(pick(Op::kMamba2, mamba2_kernels(), desc, options).row->name);
  };
  EXPECT_EQ(row_of(2048), "cuda_chunks");
  EXPECT_EQ(row_of(8), "cuda_ring");
  options.exact = true;
  EXPECT_EQ(row_of(8), "cuda_ring");
  EXPECT_EQ(row_of(2048), "cuda_ring_or_any");  // token by token, prompts by cuda_any's
}

TEST(Mamba2, Bytes) {
  const Mamba2Desc d{64, 8, 64, 128, 4};  // Nemotron-3-Nano-30B
  EXPECT_EQ(d.channels(), 6144);
  EXPECT_EQ(d.width(), 10304);
  EXPECT_EQ(bytes(d, 2, 1) - bytes(d, 1, 1),
            2 * 4 * (64 * 128 * 64 + 3 * 6144) + 4 * (10304 + 4096));
}

}  // namespace
}  // namespace nibble::ops
