// mamba2 by chunks against the twin in double: lengths, cuts, decays, heads, sizes of inputs.
#include <gtest/gtest.h>

#include <memory>

#include "ops/mamba2/mamba2_gpu_test_problem.h"

namespace nibble::ops {
namespace {

enum class Decay { kRandom, kWeak, kStrong, kMixed };

Mamba2Desc heads(int64_t heads, int64_t groups) { return {heads, groups, 64, 128, 4}; }

std::unique_ptr<MambaProblem> problem(const Mamba2Desc& desc, const std::vector<MambaSpan>& spans,
                                      Decay decay) {
  Random random(static_cast<uint32_t>(spans[0].tokens));
  auto p = std::make_unique<MambaProblem>(random, desc, spans, /*eps=*/1.f);
  if (decay == Decay::kWeak)
    for (float& a : p->a_log) a = -9;  // a chunk keeps all but a hundredth
  if (decay == Decay::kStrong)
    for (float& a : p->a_log) a = 6;
  if (decay == Decay::kMixed)  // a token in 16 forgets all before it
    for (int64_t t = 0; t < p->desc.tokens; t += 16)
      for (int64_t h = 0; h < desc.heads; ++h) p->inputs[t * desc.width() + desc.dt() + h] += 60;
  return p;
}

// Rounded to 11 bits: C, B or P, V, and the state, before and in this chunk. What tokens say about
// themselves, D x, adds to the values alone.
void compare(const MambaProblem& want, const std::vector<float>& att,
             const std::vector<float>& states) {
  const Mamba2Desc& d = want.desc;
  compare_chunks(want, att, states, d.heads, d.head_dim, d.state_dim, /*roundings=*/5);
}

void check(const MambaProblem& want, MambaProblem& got) {
  const Mamba2Desc& desc = want.desc;
  SCOPED_TRACE(testing::Message() << desc.heads << " heads in " << desc.groups << ", "
                                  << want.spans.size() << " sequences, the first of "
                                  << want.spans[0].q_len << " tokens");
  GpuProblem gpu(gpu::scratch_bytes(desc));
  const Mamba2Kernel& row = row_named("cuda_chunks", desc, gpu);
  const OnGpu on(got, gpu);
  on.run(gpu, row);
  const std::vector<float> att = flat(gpu, on.att), states = flat(gpu, on.layer.state);
  compare(want, att, states);
  ASSERT_EQ(flat(gpu, on.layer.conv), want.convs);
  on.run(gpu, row);
  ASSERT_EQ(flat(gpu, on.layer.state), states);
  ASSERT_EQ(flat(gpu, on.att), att);
}

void check(const Mamba2Desc& desc, const std::vector<MambaSpan>& spans, Decay decay) {
  const auto want = problem(desc, spans, decay), got = problem(desc, spans, decay);
  if (is_too_slow(want->desc.tokens * desc.width())) return;
  SCOPED_TRACE(testing::Message() << "decay " << static_cast<int>(decay));
  TestCtx twin(DType::kF32, 0);
  want->run(twin.cx, ref::mamba2);
  check(*want, *got);
}

TEST(MambaChunksGpu, EqualTheTwinAtEveryLength) {
  for (const int32_t tokens : {1, 31, 32, 63, 64, 65, 127, 129, 700})
    for (const bool has_state : {false, true})
      check(heads(4, 1), {{tokens, has_state}}, Decay::kRandom);
  check(heads(4, 1), {{4096, true}}, Decay::kRandom);
}

TEST(MambaChunksGpu, EqualTheTwinWithAnyDecay) {
  for (const Decay decay : {Decay::kWeak, Decay::kStrong, Decay::kMixed})
    for (const int32_t tokens : {40, 300, 2000}) check(heads(4, 4), {{tokens, true}}, decay);
}

TEST(MambaChunksGpu, EqualTheTwinWithAnyHeads) {
  check(heads(64, 8), {{150, true}}, Decay::kRandom);
  check(heads(12, 2), {{150, true}}, Decay::kRandom);
  check(heads(32, 1), {{150, true}}, Decay::kRandom);
  check(heads(20, 1), {{70, false}}, Decay::kRandom);
}

TEST(MambaChunksGpu, EqualTheTwinInSequencesOfAllLengths) {
  check(heads(4, 2), {{1, true}, {200, true}, {2, false}, {31, true}, {32, true}, {64, false}},
        Decay::kRandom);
  std::vector<MambaSpan> many;
  for (int i = 0; i < 70; ++i) many.push_back({1 + i % 35, i % 3 != 0});
  check(heads(4, 4), many, Decay::kRandom);
  check(heads(4, 4), std::vector<MambaSpan>(40, {33, true}), Decay::kWeak);
  // Drafts beside a short prompt, and many sequences beside one.
  std::vector<MambaSpan> drafts(9, {4, true});
  drafts.push_back({50, true});
  check(heads(4, 4), drafts, Decay::kRandom);
  std::vector<MambaSpan> beside(300, {1, true});
  beside.push_back({100, true});
  check(heads(4, 4), beside, Decay::kRandom);
}

// B and C far beyond f16, and far below, token by token.
TEST(MambaChunksGpu, EqualTheTwinWithInputsOfAnySize) {
  const auto make = [] {
    auto p = problem(heads(4, 1), {{200, false}}, Decay::kRandom);
    const Mamba2Desc& d = p->desc;
    for (int64_t c = d.b(); c < d.channels(); ++c) {
      for (int64_t j = 0; j < d.taps; ++j) p->conv[c * d.taps + j] = j + 1 == d.taps ? 1.f : 0.f;
      p->conv_bias[c] = 0;
      for (int64_t t = 0; t < d.tokens; ++t) {  // silu passes what is positive
        float& x = p->inputs[t * d.width() + d.inner() + c];
        x = (t % 3 == 0 ? 3e6f : 20.f) * (1 + std::fabs(x));
      }
    }
    return p;
  };
  const auto want = make(), got = make();
  TestCtx twin(DType::kF32, 0);
  want->run(twin.cx, ref::mamba2);
  check(*want, *got);
}

// A text in pieces, each from the state that the piece before left: as near to the twin as whole.
TEST(MambaChunksGpu, EqualTheTwinHoweverATextIsCut) {
  constexpr int32_t kTokens = 500;
  const auto want = problem(heads(4, 1), {{kTokens, false}}, Decay::kWeak);
  TestCtx twin(DType::kF32, 0);
  want->run(twin.cx, ref::mamba2);
  GpuProblem gpu(gpu::scratch_bytes(want->desc));
  const Mamba2Kernel& row = row_named("cuda_chunks", want->desc, gpu);
  for (const int32_t piece : {5, 64, 100, 333}) {
    const auto p = problem(heads(4, 1), {{kTokens, false}}, Decay::kWeak);
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
      row.run(gpu.cx, rows(cut.att), cut.layer, rows(cut.in), p->desc, cut.weights, step);
    }
    std::vector<float> states = flat(gpu, cut.layer.state);
    const int64_t size = p->desc.state_size();
    if (p->to[0] == 0) std::copy_n(states.begin(), size, states.begin() + size);
    SCOPED_TRACE(testing::Message() << "pieces of " << piece);
    compare(*want, flat(gpu, cut.att), states);
  }
}

}  // namespace
}  // namespace nibble::ops
