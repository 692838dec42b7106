// delta_rule of prompts by chunks of 64 tokens, with tensor cores: what happens inside a chunk, in
// products of its keys, values and queries (the WY form of Yang et al., arXiv 2412.06464), is made
// of all chunks at once; then their states follow one another. Spans of up to 16 tokens go token by
// token.
//   qkvz [T, 2 HK DK + 2 HV DV], gates [T, 2 HV] f32, in          att [T, HV DV] bf16, out
//   state [slots, HV, DK, DV], conv [slots, taps - 1, channels] f32, in and out by slot
// Needs DK = DV = 128, 4 taps.
//
// With G the sums of a chunk's logarithms of decay, D_ij = exp(G_i - G_j) for j <= i, else 0, and
// M_ij = beta_i (k_i k_j) D_ij for j < i, each row a token:
//   (I + M) U = beta V;  (I + M) W = beta exp(G) K;  P = (Q K^T) D
// and from chunk to chunk, in which columns of the state never meet:
//   V' = U - W S;  O = exp(G) Q S + P V';  S = exp(G_64) S + (exp(G_64 - G) K)^T V'
//
// q, k, W and P, which are at most 1, are kept in f16; v, U, S and V', too, where they are
// multiplied: v by powers of two of its rows, U of 16 columns of a chunk, S and V' of 16 columns,
// from bounds of what a chunk can add, so that none is too large. V' meets P in TF32, of as many
// bits; sums, and the state from chunk to chunk, are float32; the inverse of I + M is made in
// float32. The state's bits depend on where chunks begin, so on how a text is cut.
//
// Bytes at T tokens of Qwen3-Next-80B: 56 KB each, in and out. Reached on one H200, 2026-11-23: T
// = 512 82 us, 2,048 249, 8,192 942, where token by token takes 352, 1,375 and 5,721. What binds
// are the outputs of the last kernel: docs/lab/delta-net.md.
#include <algorithm>

#include "ops/delta_rule/delta_rule_across_chunks.cuh"
#include "ops/delta_rule/delta_rule_within_chunk.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {

using namespace delta;

void delta_rule_chunks(Ctx& cx, const Tensor& att, const RecurrentLayer& state,
                       const DeltaRuleIn& in, const DeltaRuleDesc& desc,
                       const DeltaRuleWeights& weights, const Step& s) {
  if (s.num_tokens == 0) return;
  CHECK(desc.key_dim == kDim && desc.value_dim == kDim && desc.taps == kTaps);
  if (is_decode(s)) return delta_rule_decode(cx, att, state, in, desc, weights, s);
  Scratch scratch(cx.scratch);
  ChunkParams c{.a = params_of(att, state, in, desc, weights, s)};
  c.a.decayed = scratch.take<float>(s.num_tokens * 2 * desc.value_heads);
  c.rows = scratch.take<uint16_t>(s.num_tokens * desc.channels());
  c.o_powers = reinterpret_cast<float*>(c.rows);
  c.powers = scratch.take<float>(s.num_tokens * desc.value_heads);
  const int64_t most = most_delta_chunks(s.num_tokens);
  c.keys = scratch.take<KeyImage>(most * desc.key_heads);
  c.heads = scratch.take<HeadImage>(most * desc.value_heads);
  if (s.num_spans > 1) decode_spans(cx, c.a, kFewTokens);
  constexpr auto kRelease = cuda::Release::kAfterWait;
  const auto dim = [](int64_t n) { return static_cast<unsigned>(n); };
  cuda::launch(cx.stream, prepare_tile,
               {.grid = dim3(dim((s.num_tokens + kTile - 1) / kTile),
                             dim((desc.channels() / kDim + kPrepareWarps - 1) / kPrepareWarps)),
                .block = dim3(kPrepareThreads),
                .release = kRelease},
               c);
  const int64_t chunks = std::min<int64_t>(most, s.num_tokens / kChunk + s.num_spans);
  cuda::launch(cx.stream, within_chunk,
               {.grid = dim3(dim(chunks), dim(desc.value_heads)),
                .block = dim3(kWithinThreads),
                .smem_bytes = kWithinBytes,
                .release = kRelease},
               c);
  cuda::launch(cx.stream, across_chunks,
               {.grid = dim3(dim(desc.value_heads * kTiles), dim(s.num_spans)),
                .block = dim3(kAcrossThreads),
                .smem_bytes = sizeof(AcrossMemory),
                .release = kRelease},
               c);
  cuda::launch(
      cx.stream, norm_outputs,
      {.grid = dim3(dim(s.num_tokens), dim((desc.value_heads + kNormHeads - 1) / kNormHeads)),
       .block = dim3(kNormThreads),
       .release = kRelease},
      c);
}

}  // namespace nibble::ops::gpu
