// delta_rule by chunks against the twin in double: lengths, cuts, decays, ratios of heads.
#include <gtest/gtest.h>

#include "ops/delta_rule/delta_rule_gpu_test_problem.h"

namespace nibble::ops {
namespace {

const DeltaRuleKernel& chunks_row(const DeltaRuleDesc& desc, KernelOptions options) {
  options.any_size = true;
  for (const auto& row : delta_rule_kernels())
    if (std::string_view(row.name) == "cuda_chunks") {
      CHECK(row.run != nullptr && row.refuse(desc, options) == nullptr);
      return row;
    }
  CHECK(false);
}

enum class Decay { kRandom, kWeak, kStrong, kMixed };

DeltaRuleDesc heads(int64_t key_heads, int64_t value_heads,
                    DeltaInputs inputs = DeltaInputs::kByKeyHead) {
  return {key_heads, value_heads, 128, 128, 4, inputs};
}

std::unique_ptr<DeltaProblem> problem(const DeltaRuleDesc& desc,
                                      const std::vector<DeltaSpan>& spans, Decay decay) {
  Random random(static_cast<uint32_t>(spans[0].tokens));
  auto p = std::make_unique<DeltaProblem>(random, desc, spans, /*eps=*/1.f);
  if (decay == Decay::kWeak)
    for (float& b : p->dt_bias) b = -12;  // a chunk keeps all but a thousandth
  if (decay == Decay::kStrong)
    for (float& b : p->dt_bias) b = 30;
  if (decay == Decay::kMixed)  // a token in 16 forgets all before it
    for (int64_t t = 0; t < p->desc.tokens; t += 16)
      for (int64_t i = 0; i < 2 * desc.value_heads; ++i)
        p->gates[t * 2 * desc.value_heads + i] += 60;
  return p;
}

// Rounded to 11 bits: q or k, W, P or the inverse, v, the state, V'.
void compare(const DeltaProblem& want, const std::vector<float>& att,
             const std::vector<float>& states) {
  const DeltaRuleDesc& d = want.desc;
  compare_chunks(want, att, states, d.value_heads, d.value_dim, d.key_dim, /*roundings=*/6);
}

// `want` and `got`: the same problem twice.
void check(DeltaProblem& want, DeltaProblem& got) {
  if (is_too_slow(want.desc.tokens * want.desc.width())) return;
  TestCtx twin(DType::kF32, 0);
  want.run(twin.cx, ref::delta_rule);
  GpuProblem gpu(gpu::scratch_bytes(want.desc));
  const DeltaRuleKernel& row = chunks_row(want.desc, gpu.cx.kernels);
  const OnGpu on(got, gpu);
  on.run(gpu, row);
  const std::vector<float> att = flat(gpu, on.att), states = flat(gpu, on.layer.state);
  compare(want, att, states);
  ASSERT_EQ(flat(gpu, on.layer.conv), want.convs);
  on.run(gpu, row);
  ASSERT_EQ(flat(gpu, on.layer.state), states);
  ASSERT_EQ(flat(gpu, on.att), att);
}

void check(const DeltaRuleDesc& desc, const std::vector<DeltaSpan>& spans, Decay decay) {
  SCOPED_TRACE(testing::Message() << desc.key_heads << " and " << desc.value_heads << " heads, "
                                  << spans.size() << " sequences, the first of " << spans[0].tokens
                                  << " tokens, decay " << static_cast<int>(decay));
  check(*problem(desc, spans, decay), *problem(desc, spans, decay));
}

TEST(DeltaChunksGpu, EqualTheTwinAtEveryLength) {
  for (const int32_t tokens : {1, 16, 17, 63, 64, 65, 127, 129, 700})
    for (const bool has_state : {false, true})
      check(heads(1, 3), {{tokens, has_state}}, Decay::kRandom);
  check(heads(1, 2), {{4096, true}}, Decay::kRandom);
}

TEST(DeltaChunksGpu, EqualTheTwinWithAnyDecay) {
  for (const Decay decay : {Decay::kWeak, Decay::kStrong, Decay::kMixed})
    for (const int32_t tokens : {40, 300, 2000}) check(heads(1, 1), {{tokens, true}}, decay);
}

// Values and states far from one, and large ones that are forgotten in the middle of a chunk, with
// small ones behind them.
TEST(DeltaChunksGpu, EqualTheTwinWithValuesOfAnySize) {
  const DeltaRuleDesc desc = heads(1, 2);
  constexpr int64_t kTokens = 200, kForget = 85;
  for (const auto& [before, behind] :
       {std::pair{0x1p24f, 0x1p24f}, {0x1p24f, 1.f}, {1.f, 0x1p24f}, {0x1p-18f, 0x1p-18f}}) {
    const auto make = [&] {
      auto p = problem(desc, {{kTokens, true}}, Decay::kRandom);
      for (float& x : p->states) x *= before;
      for (float& x : p->convs) x *= before;
      const DeltaPlaces at = delta_places(desc, 0);
      for (int64_t t = 0; t < kTokens; ++t)
        for (int64_t j = 0; j < desc.value_width(); ++j)
          p->qkvz[t * desc.width() + at.v + j] *= t < kForget ? before : behind;
      for (int64_t t = kForget; t < kForget + desc.taps; ++t)  // the convolution's window
        for (int64_t h = 0; h < desc.value_heads; ++h)
          p->gates[t * 2 * desc.value_heads + at.a + h] += 3000;
      return p;
    };
    SCOPED_TRACE(testing::Message() << "values of " << before << ", then of " << behind);
    check(*make(), *make());
  }
}

TEST(DeltaChunksGpu, EqualTheTwinWithAnyHeads) {
  using enum DeltaInputs;
  check(heads(16, 32), {{150, true}}, Decay::kRandom);
  check(heads(3, 3, kInOrder), {{150, true}}, Decay::kRandom);
  check(heads(2, 8, kInOrder), {{150, true}}, Decay::kRandom);
  check(heads(1, 33), {{70, false}}, Decay::kRandom);
}

TEST(DeltaChunksGpu, EqualTheTwinInSequencesOfAllLengths) {
  check(heads(2, 4), {{1, true}, {200, true}, {2, false}, {17, true}, {16, true}, {64, false}},
        Decay::kRandom);
  std::vector<DeltaSpan> many;
  for (int i = 0; i < 70; ++i) many.push_back({1 + i % 35, i % 3 != 0});
  check(heads(1, 2), many, Decay::kRandom);
  check(heads(1, 2), std::vector<DeltaSpan>(40, {17, true}), Decay::kWeak);
  // So many chunks that one sequence's would go in pieces.
  check(heads(1, 2), {{2500, true}, {3, true}, {40, false}, {1800, true}}, Decay::kRandom);
  // Drafts beside a short prompt, and more sequences than a block holds at a time.
  std::vector<DeltaSpan> drafts(9, {4, true});
  drafts.push_back({30, true});
  check(heads(1, 2), drafts, Decay::kRandom);
  check(heads(1, 1), std::vector<DeltaSpan>(600, {1, true}), Decay::kRandom);
}

// A text in pieces, each from the state that the piece before left: as near to the twin as whole.
TEST(DeltaChunksGpu, EqualTheTwinHoweverATextIsCut) {
  constexpr int32_t kTokens = 500;
  const auto want = problem(heads(1, 2), {{kTokens, false}}, Decay::kWeak);
  TestCtx twin(DType::kF32, 0);
  want->run(twin.cx, ref::delta_rule);
  GpuProblem gpu(gpu::scratch_bytes(want->desc));
  const DeltaRuleKernel& row = chunks_row(want->desc, gpu.cx.kernels);
  for (const int32_t piece : {5, 64, 100, 333}) {
    const auto p = problem(heads(1, 2), {{kTokens, false}}, Decay::kWeak);
    OnGpu cut(*p, gpu);
    for (int32_t first = 0; first < kTokens; first += piece) {
      const int32_t tokens = std::min(piece, kTokens - first);
      const Span span{0, tokens, first, 0};
      const Step step{.num_tokens = tokens, .num_spans = 1, .spans = gpu.array(&span, 1)};
      const auto rows = [&](const Tensor& of) {
        return make_tensor(
            static_cast<uint8_t*>(of.data) + first * of.dim(1) * dtype_bytes(of.dtype), of.dtype,
            {tokens, of.dim(1)});
      };
      if (first > 0) p->from[0] = p->to[0], p->to[0] = 1 - p->to[0];
      cut.layer.from = gpu.array(p->from), cut.layer.to = gpu.array(p->to);
      row.run(gpu.cx, rows(cut.att), cut.layer, {rows(cut.in.qkvz), rows(cut.in.gates)}, p->desc,
              cut.weights, step);
    }
    std::vector<float> states = flat(gpu, cut.layer.state);
    const int64_t size = p->state_size();
    if (p->to[0] == 0) std::copy_n(states.begin(), size, states.begin() + size);
    SCOPED_TRACE(testing::Message() << "pieces of " << piece);
    compare(*want, flat(gpu, cut.att), states);
  }
}

}  // namespace
}  // namespace nibble::ops
