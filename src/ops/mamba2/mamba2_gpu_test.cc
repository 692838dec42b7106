#include <gtest/gtest.h>

#include <memory>

#include "ops/mamba2/mamba2_gpu_test_problem.h"

namespace nibble::ops {
namespace {

// All rows that leave the same bits, whatever the number of tokens.
std::vector<const Mamba2Kernel*> rows_of(const Mamba2Desc& desc, const GpuProblem& gpu) {
  KernelOptions options = gpu.cx.kernels;
  options.any_size = options.exact = true;
  return kernels_here(mamba2_kernels(), desc, options);
}

// The bounds of float32 on a CPU, sums of which are alike; exponentials of the GPU's fast kind are
// off by 2^-21 more. What is stored is rounded to bf16. All rows leave the same bits.
void check(const Mamba2Desc& desc, const std::vector<MambaSpan>& spans) {
  const auto make = [&] {
    Random random(static_cast<uint32_t>(desc.head_dim));
    return std::make_unique<MambaProblem>(random, desc, spans, /*eps=*/1.f);
  };
  const auto want = make(), got = make();
  if (is_too_slow(want->desc.tokens * desc.width())) return;
  TestCtx twin(DType::kF32, 0);
  want->run(twin.cx, ref::mamba2);
  const MambaBounds bounds = mamba_bounds(*want);
  GpuProblem gpu(gpu::scratch_bytes(want->desc));
  std::vector<float> first_att, first_states;
  for (const Mamba2Kernel* row : rows_of(want->desc, gpu)) {
    SCOPED_TRACE(testing::Message() << row->name << ", " << desc.heads << " heads of "
                                    << desc.state_dim << " by " << desc.head_dim);
    const OnGpu on(*got, gpu);
    on.run(gpu, *row);
    const std::vector<float> att = flat(gpu, on.att), states = flat(gpu, on.layer.state);
    for (size_t i = 0; i < att.size(); ++i)
      ASSERT_NEAR(att[i], want->att[i],
                  2 * bounds.att + store_error(DType::kBF16, want->att[i]) + 1e-6)
          << i;
    ASSERT_LE(rms_off(att, want->att), 2 * bounds.att_rms + 0x1p-8);  // bf16 rounds by half of 2^-7
    for (size_t i = 0; i < states.size(); ++i)
      ASSERT_NEAR(states[i], want->states[i], 2 * bounds.state) << i;
    ASSERT_EQ(flat(gpu, on.layer.conv), want->convs);
    on.run(gpu, *row);
    ASSERT_EQ(flat(gpu, on.layer.state), states);
    ASSERT_EQ(flat(gpu, on.att), att);
    if (first_att.empty()) first_att = att, first_states = states;
    ASSERT_EQ(att, first_att);
    ASSERT_EQ(states, first_states);
  }
}

TEST(Mamba2Gpu, EveryKernelEqualsTheTwin) {
  for (const Mamba2Desc& desc : mamba_descs()) {
    check(desc, {{1, false}});
    check(desc, {{1, true}, {1, true}, {1, false}});
    check(desc, {{2, true}, {70, false}, {1, true}, {5, true}});
  }
  check({64, 8, 64, 128, 4}, {{33, true}, {1, true}});
}

// One token of each sequence, whose states lie anywhere: the bits of cuda_any, whatever blocks
// share the work.
void check_ring(const Mamba2Desc& desc, int32_t sequences, const std::vector<int>& sms) {
  std::vector<MambaSpan> spans;
  for (int32_t i = 0; i < sequences; ++i) spans.push_back({1, i % 5 != 3});
  Random random(static_cast<uint32_t>(sequences));
  MambaProblem p(random, desc, spans);
  if (is_too_slow(p.desc.tokens * desc.width())) return;
  for (int32_t i = 0; i < sequences; ++i) {  // slots in another order than spans
    p.spans[i].slot = sequences - 1 - i;
    if (i % 2 == 0 && p.from[i] != RecurrentLayer::kNoState) std::swap(p.from[i], p.to[i]);
  }
  GpuProblem gpu(gpu::scratch_bytes(p.desc));
  const OnGpu want(p, gpu);
  want.run(gpu, row_named("cuda_any", p.desc, gpu));
  const std::vector<float> att = flat(gpu, want.att), states = flat(gpu, want.layer.state),
                           convs = flat(gpu, want.layer.conv);
  for (const int num_sms : sms) {
    gpu.cx.kernels.gpu.num_sms = num_sms;
    const OnGpu got(p, gpu);
    got.run(gpu, row_named("cuda_ring", p.desc, gpu));
    SCOPED_TRACE(testing::Message() << sequences << " sequences, " << desc.heads << " heads in "
                                    << desc.groups << ", " << num_sms << " SMs");
    ASSERT_EQ(flat(gpu, got.att), att);
    ASSERT_EQ(flat(gpu, got.layer.state), states);
    ASSERT_EQ(flat(gpu, got.layer.conv), convs);
  }
}

TEST(Mamba2Gpu, TheRingLeavesTheSameBitsHoweverItIsSharedOut) {
  for (const int32_t sequences : {1, 3, 8, 20})
    check_ring({16, 2, 64, 128, 4}, sequences, {1, 5, 16});
  check_ring({12, 2, 64, 128, 4}, 7, {2, 7, 132});  // six heads to a group
  check_ring({9, 1, 64, 128, 4}, 5, {3, 4});        // three blocks to a group, of three heads
  check_ring({64, 2, 64, 128, 4, 1e-3f, 0.1f}, 2, {8, 24});
  check_ring({1, 1, 64, 128, 4}, 150, {1, 2});  // more than the table of a block
  check_ring({64, 8, 64, 128, 4}, 16, {132});
}

// As on a CPU: what follows a span that ends early is of no sequence.
TEST(Mamba2Gpu, SpansMayBeCutShort) {
  const Mamba2Desc& desc = mamba_descs()[0];
  const std::vector<MambaSpan> sequences = {{8, true}, {3, false}, {8, true}};
  for (const int32_t kept : {1, 5}) {
    Random random(11), same(11);
    MambaProblem want(random, desc, sequences), got(same, desc, sequences);
    for (MambaProblem* p : {&want, &got}) p->spans[0].q_len = p->spans[2].q_len = kept;
    TestCtx twin(DType::kF32, 0);
    want.run(twin.cx, ref::mamba2);
    GpuProblem gpu(gpu::scratch_bytes(got.desc));
    for (const Mamba2Kernel* row : rows_of(got.desc, gpu)) {
      const OnGpu on(got, gpu);
      on.run(gpu, *row);
      const std::vector<float> states = flat(gpu, on.layer.state);
      for (size_t i = 0; i < states.size(); ++i)
        ASSERT_NEAR(states[i], want.states[i], 2 * mamba_bounds(want).state) << row->name;
      ASSERT_EQ(flat(gpu, on.layer.conv), want.convs) << row->name;
    }
  }
}

// With the eps of models the norm divides by what is there.
TEST(Mamba2Gpu, ASmallEpsInTheNorm) {
  Random random(5), same(5);
  const Mamba2Desc& desc = mamba_descs()[1];
  MambaProblem want(random, desc, {{9, true}}), got(same, desc, {{9, true}});
  TestCtx twin(DType::kF32, 0);
  want.run(twin.cx, ref::mamba2);
  GpuProblem gpu(gpu::scratch_bytes(got.desc));
  for (const Mamba2Kernel* row : rows_of(got.desc, gpu)) {
    const OnGpu on(got, gpu);
    on.run(gpu, *row);
    const std::vector<float> att = flat(gpu, on.att);
    for (size_t i = 0; i < att.size(); ++i)
      ASSERT_NEAR(att[i], want.att[i], store_error(DType::kBF16, want.att[i]) + 1e-4) << row->name;
  }
}

TEST(Mamba2Gpu, TheSameBitsHoweverATextIsCut) {
  const Mamba2Desc& desc = mamba_descs()[1];
  constexpr int32_t kTokens = 75;
  Random random(9);
  MambaProblem p(random, desc, {{kTokens, false}});
  GpuProblem gpu(gpu::scratch_bytes(p.desc));
  if (is_too_slow(kTokens * desc.width())) return;
  const int64_t state = desc.state_size(), conv = desc.conv_size();
  for (const Mamba2Kernel* row : rows_of(p.desc, gpu)) {
    const OnGpu whole(p, gpu);
    whole.run(gpu, *row);
    const std::vector<float> want = flat(gpu, whole.att), left = flat(gpu, whole.layer.state),
                             kept = flat(gpu, whole.layer.conv);
    for (const int32_t piece : {1, 2, 7, 64}) {
      p.from[0] = RecurrentLayer::kNoState, p.to[0] = 1;
      OnGpu cut(p, gpu);
      for (int32_t first = 0; first < kTokens; first += piece) {
        const int32_t tokens = std::min(piece, kTokens - first);
        const Span span{0, tokens, first, 0};
        const Step step{.num_tokens = tokens, .num_spans = 1, .spans = gpu.array(&span, 1)};
        const auto rows = [&](const Tensor& of) {
          return make_tensor(
              static_cast<uint8_t*>(of.data) + first * of.dim(1) * dtype_bytes(of.dtype), of.dtype,
              {tokens, of.dim(1)});
        };
        if (first > 0) p.from[0] = p.to[0], p.to[0] = 1 - p.to[0];
        cut.layer.from = gpu.array(p.from), cut.layer.to = gpu.array(p.to);
        row->run(gpu.cx, rows(cut.att), cut.layer, rows(cut.in), p.desc, cut.weights, step);
      }
      ASSERT_EQ(flat(gpu, cut.att), want) << row->name << " " << piece;
      const std::vector<float> states = flat(gpu, cut.layer.state),
                               inputs = flat(gpu, cut.layer.conv);
      ASSERT_TRUE(std::equal(left.begin() + state, left.end(), states.begin() + p.to[0] * state));
      ASSERT_TRUE(std::equal(kept.begin() + conv, kept.end(), inputs.begin() + p.to[0] * conv));
      p.from[0] = RecurrentLayer::kNoState, p.to[0] = 1;
    }
  }
}

}  // namespace
}  // namespace nibble::ops
