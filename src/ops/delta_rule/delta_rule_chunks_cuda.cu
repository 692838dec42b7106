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
// bits; sums, and the state from chunk to chunk, are float32; the inverse of I + M is made to 21
// bits. The state's bits depend on where chunks begin, so on how a text is cut.
//
// Bytes at T tokens of Qwen3-Next-80B: 56 KB each, in and out. Reached on one H200, 2026-11-28: T
// = 512 64 us, 2,048 143, 8,192 468, where token by token takes 352, 1,375 and 5,721. Where they
// go: docs/lab/delta-net.md.
#include <algorithm>

#include "ops/delta_rule/delta_rule_across_chunks.cuh"
#include "ops/delta_rule/delta_rule_within_chunk.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {

using namespace delta;

namespace {
// A step's chunks in so many pieces, of so many at least, if it has few sequences: each launch that
// takes states on has blocks for all of them.
constexpr int kPieces = 4, kFewestChunks = 16, kMostSpans = 1;
}  // namespace

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
  c.powers = scratch.take<float>(s.num_tokens * desc.value_heads);
  c.o_powers = scratch.take<float>(s.num_tokens * desc.value_heads * kTiles);
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
  const auto chunks =
      static_cast<int>(std::min<int64_t>(most, s.num_tokens / kChunk + s.num_spans));
  const int pieces = s.num_spans > kMostSpans ? 1 : std::clamp(chunks / kFewestChunks, 1, kPieces);
  const int size = (chunks + pieces - 1) / pieces;
  const auto piece = [&](int first, bool starts_early) {
    return Piece{first, std::min(first + size, chunks), starts_early};
  };
  const auto within = [&](Piece of) {
    cuda::launch(cx.stream, within_chunk,
                 {.grid = dim3(dim(desc.value_heads), dim(of.end - of.first)),
                  .block = dim3(kWithinThreads),
                  .smem_bytes = kWithinBytes,
                  .release = of.starts_early ? cuda::Release::kBeforeWait : kRelease,
                  .reads_inputs = of.starts_early},
                 c, of);
  };
  const auto norm = [&](Piece of) {
    cuda::launch(cx.stream, norm_outputs,
                 {.grid = dim3(dim(of.end - of.first),
                               dim(kChunk * ((desc.value_heads + kNormHeads - 1) / kNormHeads))),
                  .block = dim3(kNormThreads),
                  .release = of.starts_early ? cuda::Release::kBeforeWait : kRelease,
                  .reads_inputs = of.starts_early},
                 c, of);
  };
  within(piece(0, false));
  for (int first = 0; first < chunks; first += size) {
    cuda::launch(cx.stream, across_chunks,
                 {.grid = dim3(dim(desc.value_heads * kTiles), dim(s.num_spans)),
                  .block = dim3(kAcrossThreads),
                  .smem_bytes = sizeof(AcrossMemory) + 1023,
                  .release = kRelease},
                 c, piece(first, false));
    if (first + size < chunks) within(piece(first + size, true));
    if (first > 0) norm(piece(first - size, true));
  }
  norm(piece((chunks - 1) / size * size, false));
}

}  // namespace nibble::ops::gpu
