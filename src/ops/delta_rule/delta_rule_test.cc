#include "ops/delta_rule/delta_rule.h"

#include <gtest/gtest.h>

#include "cpu/isa.h"
#include "ops/cpu_matmul/float_kernels.h"
#include "ops/delta_rule/delta_rule_test_problem.h"

namespace nibble::ops {
namespace {

std::string name_of(const DeltaRuleKernel& row, const DeltaRuleDesc& d) {
  return std::string(row.name) + ", " + std::to_string(d.key_heads) + " and " +
         std::to_string(d.value_heads) + " heads of " + std::to_string(d.key_dim) + " and " +
         std::to_string(d.value_dim);
}

void check(const DeltaRuleDesc& desc, const std::vector<DeltaSpan>& spans) {
  const auto make = [&] {
    Random random(static_cast<uint32_t>(desc.key_dim));
    return std::make_unique<DeltaProblem>(random, desc, spans, /*eps=*/1.f);
  };
  const auto want = make();
  TestCtx twin(DType::kF32, 0);
  want->run(twin.cx, ref::delta_rule);
  const DeltaBounds bounds = delta_bounds(*want, delta_size(*want));
  ASSERT_LT(bounds.state, 0.05);
  TestCtx test(DType::kF32, scratch_bytes(want->desc, want->desc.tokens, 2));
  for (const DeltaRuleKernel* row : kernels_here(delta_rule_kernels(), want->desc)) {
    const auto got = make();
    got->run(test.cx, row->run);
    for (size_t i = 0; i < want->att.size(); ++i)
      ASSERT_NEAR(got->att[i], want->att[i], bounds.att) << name_of(*row, desc) << ", " << i;
    for (size_t i = 0; i < want->states.size(); ++i)  // those of `from` as they were
      ASSERT_NEAR(got->states[i], want->states[i], bounds.state) << name_of(*row, desc);
    ASSERT_EQ(got->convs, want->convs) << name_of(*row, desc);
    const auto again = make();
    again->run(test.cx, row->run);
    ASSERT_EQ(again->att, got->att);
    ASSERT_EQ(again->states, got->states);
  }
}

TEST(DeltaRule, EveryKernelEqualsTheTwin) {
  for (const DeltaRuleDesc& desc : delta_descs()) {
    check(desc, {{1, false}});
    check(desc, {{1, true}, {1, true}, {1, false}});
    check(desc, {{2, true}, {70, false}, {1, true}, {5, true}});
  }
}

// The gated norm with the eps of models.
TEST(DeltaRule, ASmallEpsInTheNorm) {
  Random random(5), same(5);
  const DeltaRuleDesc& desc = delta_descs()[2];
  DeltaProblem want(random, desc, {{9, true}}), got(same, desc, {{9, true}});
  TestCtx twin(DType::kF32, 0), test(DType::kF32, scratch_bytes(got.desc, 9, 2));
  want.run(twin.cx, ref::delta_rule);
  for (const DeltaRuleKernel* row : kernels_here(delta_rule_kernels(), got.desc)) {
    got.run(test.cx, row->run);
    for (size_t i = 0; i < want.att.size(); ++i)  // o of a random state is not small
      ASSERT_NEAR(got.att[i], want.att[i], 1e-4 * (1 + std::fabs(want.att[i]))) << row->name;
  }
}

// A text cut anywhere leaves the same bits: outputs, states and kept inputs.
TEST(DeltaRule, TheSameBitsHoweverATextIsCut) {
  const DeltaRuleDesc& desc = delta_descs()[0];
  constexpr int32_t kTokens = 75;
  for (const int32_t piece : {1, 2, 7, 64}) {
    Random random(9), same(9);
    DeltaProblem whole(random, desc, {{kTokens, false}});
    for (const DeltaRuleKernel* row : kernels_here(delta_rule_kernels(), whole.desc)) {
      TestCtx test(DType::kF32, scratch_bytes(whole.desc, kTokens, 2));
      whole.run(test.cx, row->run);
      Random again(9);
      DeltaProblem cut(again, desc, {{kTokens, false}});
      for (int32_t first = 0; first < kTokens; first += piece) {
        const int32_t tokens = std::min(piece, kTokens - first);
        const Span span{0, tokens, first, 0};
        const Step step{.num_tokens = tokens, .num_spans = 1, .spans = &span};
        const auto rows = [&](std::vector<float>& of, int64_t width) {
          return make_tensor(of.data() + first * width, DType::kF32, {tokens, width});
        };
        cut.to[0] = cut.from[0] == 1 ? 0 : 1;
        row->run(test.cx, rows(cut.att, desc.value_width()), cut.layer(),
                 {rows(cut.qkvz, desc.width()), rows(cut.gates, 2 * desc.value_heads)}, cut.desc,
                 cut.weights, step);
        cut.from[0] = cut.to[0];
      }
      ASSERT_EQ(cut.att, whole.att) << row->name << " " << piece;
      ASSERT_TRUE(std::equal(cut.left(0), cut.left(0) + cut.state_size(), whole.left(0)));
      ASSERT_TRUE(std::equal(cut.kept(0), cut.kept(0) + cut.conv_size(), whole.kept(0)));
    }
  }
}

// Tokens of other sequences in the step change nothing.
TEST(DeltaRule, TheSameBitsAloneAndInABatch) {
  const DeltaRuleDesc& desc = delta_descs()[4];
  Random random(3);
  DeltaProblem batch(random, desc, {{3, true}, {6, true}});
  for (const DeltaRuleKernel* row : kernels_here(delta_rule_kernels(), batch.desc)) {
    TestCtx test(DType::kF32, scratch_bytes(batch.desc, 9, 2));
    batch.run(test.cx, row->run);
    const std::vector<float> together = batch.att,
                             left(batch.left(1), batch.left(1) + batch.state_size());
    const Span span{0, 6, 7, 1};
    const Step step{.num_tokens = 6, .num_spans = 1, .spans = &span};
    const auto rows = [&](std::vector<float>& of, int64_t width) {
      return make_tensor(of.data() + 3 * width, DType::kF32, {6, width});
    };
    row->run(test.cx, rows(batch.att, desc.value_width()), batch.layer(),
             {rows(batch.qkvz, desc.width()), rows(batch.gates, 2 * desc.value_heads)}, batch.desc,
             batch.weights, step);
    ASSERT_EQ(batch.att, together) << row->name;
    ASSERT_TRUE(std::equal(left.begin(), left.end(), batch.left(1))) << row->name;
  }
}

// A state of which one copy may be written past the caches, the other not, as it is not aligned.
TEST(DeltaRule, TheSameBitsPastTheCaches) {
  constexpr int64_t kDim = 64, kGuard = 16;
  Random random(6);
  const std::vector<float> from = random.normals(kDim * kDim), qkv = random.normals(3 * kDim);
  const float gates[] = {0.5f, 0.25f};
  for (const cpu::Isa isa :
       {cpu::Isa::kAvx512, cpu::Isa::kAvx2, cpu::Isa::kNeon, cpu::Isa::kScalar}) {
    if (!cpu::supports(cpu::detect_isa(), isa)) continue;
    std::vector<float> block((2 * kDim + 1) * kDeltaColumns), out[2];
    alignas(64) float states[2][kGuard + kDim * kDim + kGuard];
    for (const int shift : {0, 1}) {
      float* to = states[shift] + kGuard - shift;
      std::fill(std::begin(states[shift]), std::end(states[shift]), -1.f);
      out[shift].resize(kDim);
      float_kernels(isa).delta.run({.tokens = 1,
                                    .key_dim = kDim,
                                    .columns = kDim,
                                    .qkv = qkv.data(),
                                    .k = kDim,
                                    .v = 2 * kDim,
                                    .gates = gates,
                                    .from = from.data(),
                                    .to = to,
                                    .ld_state = kDim,
                                    .past_caches = true,
                                    .block = block.data() + kDeltaColumns,
                                    .values = block.data(),
                                    .out = out[shift].data()});
      EXPECT_EQ(to[-1], -1);
      EXPECT_EQ(to[kDim * kDim], -1);
    }
    EXPECT_EQ(out[0], out[1]);
    EXPECT_TRUE(
        std::equal(states[0] + kGuard, states[0] + kGuard + kDim * kDim, states[1] + kGuard - 1));
    EXPECT_FALSE(std::equal(from.begin(), from.end(), states[0] + kGuard));
  }
}

// Decays that vanish and gates that saturate are numbers.
TEST(DeltaRule, ExtremeGates) {
  Random random(4);
  DeltaProblem p(random, delta_descs()[0], {{4, true}});
  for (size_t i = 0; i < p.gates.size(); ++i) p.gates[i] = i % 2 == 0 ? 500.f : -500.f;
  TestCtx test(DType::kF32, scratch_bytes(p.desc, 4, 2));
  for (const DeltaRuleKernel* row : kernels_here(delta_rule_kernels(), p.desc)) {
    p.run(test.cx, row->run);
    for (const float x : p.att) ASSERT_TRUE(std::isfinite(x)) << row->name;
    for (const float x : p.states) ASSERT_TRUE(std::isfinite(x)) << row->name;
  }
}

// The twin of one head by hand: a state that decays to half, a key that is known in part.
TEST(DeltaRule, ByHand) {
  const DeltaRuleDesc desc{1, 1, 1, 1, 1, DeltaInputs::kInOrder, 1};
  const float conv[] = {1, 1, 1}, a_log = 0, dt_bias = 0, norm = 2;
  float qkvz[] = {3, 2, 1, 1}, gates[] = {0, 0}, att = 0, state[] = {4, 0}, none = 0;
  const int32_t from = 0, to = 1;
  const Span span{0, 1, 5, 0};
  const Step step{.num_tokens = 1, .num_spans = 1, .spans = &span};
  TestCtx twin(DType::kF32, 0);
  const RecurrentLayer layer{.state = make_tensor(state, DType::kF32, {2, 1, 1, 1}),
                             .conv = make_tensor(&none, DType::kF32, {2, 0, 3}),
                             .from = &from,
                             .to = &to};
  ref::delta_rule(twin.cx, make_tensor(&att, DType::kF32, {1, 1}), layer,
                  {make_tensor(qkvz, DType::kF32, {1, 4}), make_tensor(gates, DType::kF32, {1, 2})},
                  desc, {conv, &a_log, &dt_bias, &norm, 3}, step);
  // decay = exp(-ln 2) = 1/2, beta = 1/2, k = q = 1 but for 1e-6 in their length, v = silu(1).
  const double v = 1 / (1 + std::exp(-1)), s = 2 + 0.5 * (v - 2);
  EXPECT_NEAR(state[1], s, 1e-5);
  EXPECT_EQ(state[0], 4);
  EXPECT_NEAR(att, 2 * s / std::sqrt(s * s + 3) * v, 1e-5);
}

TEST(DeltaRule, Bytes) {
  const DeltaRuleDesc d{16, 32, 128, 128, 4};
  EXPECT_EQ(d.channels(), 8192);
  EXPECT_EQ(d.width(), 12288);
  EXPECT_EQ(bytes(d, 2, 1) - bytes(d, 1, 1),
            2 * 4 * (32 * 128 * 128 + 3 * 8192) + 4 * (12288 + 64 + 4096));
}

TEST(DeltaRule, PromptsGoByChunksUnlessTheirBitsAreAskedFor) {
  KernelOptions options;
  options.gpu = cuda::h200();
  const auto row_of = [&](int64_t tokens, int64_t dim) {
    return std::string_view(
        pick(Op::kDeltaRule, delta_rule_kernels(),
             DeltaRuleDesc{16, 32, 128, dim, 4, DeltaInputs::kByKeyHead, tokens}, options)
            .row->name);
  };
  EXPECT_EQ(row_of(2048, 128), "cuda_chunks");
  EXPECT_EQ(row_of(8, 128), "cuda_decode");
  EXPECT_EQ(row_of(2048, 64), "cuda_any");
  options.exact = true;
  EXPECT_EQ(row_of(8, 128), "cuda_decode");
  EXPECT_EQ(row_of(2048, 128), "cuda_decode_or_any");  // token by token, prompts by cuda_any's
  EXPECT_EQ(row_of(2048, 64), "cuda_any");
}

}  // namespace
}  // namespace nibble::ops
