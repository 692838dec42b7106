#include <gtest/gtest.h>

#include <memory>

#include "ops/gpu_test_problem.h"
#include "ops/mamba2/mamba2_test_problem.h"

namespace nibble::ops {
namespace {

// A problem's copy on the GPU.
struct OnGpu {
  OnGpu(MambaProblem& p, GpuProblem& gpu)
      : p(p),
        layer(p.layer()),
        in(gpu.tensor(p.in())),
        weights{gpu.array(p.conv),    gpu.array(p.conv_bias), gpu.array(p.a_log), gpu.array(p.skip),
                gpu.array(p.dt_bias), gpu.array(p.norm),      p.weights.eps},
        att(gpu.output(DType::kBF16, {p.desc.tokens, p.desc.inner()})),
        step(gpu.step(p.step)) {
    layer.state = gpu.tensor(layer.state), layer.conv = gpu.tensor(layer.conv);
    layer.from = gpu.array(p.from), layer.to = gpu.array(p.to);
  }
  void run(GpuProblem& gpu, const Mamba2Kernel& row) const {
    row.run(gpu.cx, att, layer, in, p.desc, weights, step);
  }

  MambaProblem& p;
  RecurrentLayer layer;
  Tensor in;
  Mamba2Weights weights;
  Tensor att;
  Step step;
};

std::vector<float> flat(GpuProblem& gpu, Tensor t) {
  const int64_t n = t.num_elements();
  return gpu.floats(make_tensor(t.data, t.dtype, {1, n})).values;
}

std::vector<const Mamba2Kernel*> rows_of(const Mamba2Desc& desc, const GpuProblem& gpu) {
  KernelOptions options = gpu.cx.kernels;
  options.any_size = true;
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
