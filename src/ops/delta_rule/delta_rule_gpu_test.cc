#include <gtest/gtest.h>

#include "ops/delta_rule/delta_rule_gpu_test_problem.h"

namespace nibble::ops {
namespace {

// Sequences lie in the slots of others, each beside none of its own.
void shuffle_slots(Random& random, DeltaProblem& p) {
  for (size_t i = p.spans.size() - 1; i > 0; --i) {
    const int64_t slot = random.below(static_cast<int64_t>(i) + 1);
    std::swap(p.spans[i].slot, p.spans[slot].slot);
    std::swap(p.to[i], p.to[random.below(static_cast<int64_t>(i) + 1)]);
  }
}

// The bounds of float32 on a CPU, sums of which are alike; exponentials of the GPU's fast kind are
// off by 2^-21 more. What is stored is rounded to bf16. All rows leave the same bits.
void check(const DeltaRuleDesc& desc, const std::vector<DeltaSpan>& spans, bool is_shuffled = false,
           int num_sms = 0) {
  const auto make = [&] {
    Random random(static_cast<uint32_t>(desc.key_dim));
    auto p = std::make_unique<DeltaProblem>(random, desc, spans, /*eps=*/1.f);
    if (is_shuffled) shuffle_slots(random, *p);
    return p;
  };
  const auto want = make(), got = make();
  if (is_too_slow(want->desc.tokens * desc.width())) return;
  TestCtx twin(DType::kF32, 0);
  want->run(twin.cx, ref::delta_rule);
  const DeltaBounds bounds = delta_bounds(*want, delta_size(*want));
  GpuProblem gpu(gpu::scratch_bytes(want->desc), /*exact=*/true);
  if (num_sms > 0) gpu.cx.kernels.gpu.num_sms = num_sms;
  std::vector<float> first_att, first_states;
  for (const DeltaRuleKernel* row : rows_of(want->desc, gpu)) {
    SCOPED_TRACE(testing::Message()
                 << row->name << ", " << desc.key_heads << " and " << desc.value_heads
                 << " heads of " << desc.key_dim << " and " << desc.value_dim);
    const OnGpu on(*got, gpu);
    on.run(gpu, *row);
    const std::vector<float> att = flat(gpu, on.att), states = flat(gpu, on.layer.state);
    for (size_t i = 0; i < att.size(); ++i)
      ASSERT_NEAR(att[i], want->att[i],
                  2 * bounds.att + store_error(DType::kBF16, want->att[i]) + 1e-6)
          << i;
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

TEST(DeltaRuleGpu, EveryKernelEqualsTheTwin) {
  for (const DeltaRuleDesc& desc : delta_descs()) {
    check(desc, {{1, false}});
    check(desc, {{1, true}, {1, true}, {1, false}});
    check(desc, {{3, true}});
    check(desc, {{2, false}, {5, true}, {1, true}}, /*is_shuffled=*/true);
    check(desc, {{8, true}});
    check(desc, {{5, true}, {3, false}}, /*is_shuffled=*/true);
    check(desc, {{2, true}, {70, false}, {1, true}, {5, true}});
  }
  check({16, 32, 128, 128, 4}, {{33, true}, {1, true}});
}

// On a GPU of few SMs, so that a block has many heads and sequences, and all of its stages more
// than once.
TEST(DeltaRuleGpu, ManySequencesEqualTheTwin) {
  std::vector<DeltaSpan> next, verified;
  for (int32_t i = 0; i < 23; ++i) {
    next.push_back({1, i % 7 != 3});
    verified.push_back({1 + i * i % 6, i % 5 != 2});
  }
  for (const int num_sms : {1, 5, 28}) {
    check({1, 3, 128, 128, 4, DeltaInputs::kByKeyHead}, next, true, num_sms);
    check({2, 2, 128, 128, 4, DeltaInputs::kInOrder}, next, true, num_sms);
    check({1, 3, 128, 128, 4, DeltaInputs::kInOrder}, verified, true, num_sms);
  }
  check({1, 2, 128, 128, 4, DeltaInputs::kByKeyHead}, verified, true);
}

TEST(DeltaRuleGpu, TheSameBitsHoweverATextIsCut) {
  const DeltaRuleDesc& desc = delta_descs()[2];
  constexpr int32_t kTokens = 75;
  Random random(9);
  DeltaProblem p(random, desc, {{kTokens, false}});
  GpuProblem gpu(gpu::scratch_bytes(p.desc), /*exact=*/true);
  if (is_too_slow(kTokens * desc.width())) return;
  const int64_t state = p.state_size(), conv = p.conv_size();
  for (const DeltaRuleKernel* row : rows_of(p.desc, gpu)) {
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
        row->run(gpu.cx, rows(cut.att), cut.layer, {rows(cut.in.qkvz), rows(cut.in.gates)}, p.desc,
                 cut.weights, step);
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
