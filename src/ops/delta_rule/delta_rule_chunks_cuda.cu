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
// q, k, W and P, which are at most 1, are kept in f16; values and the state are float32, and TF32
// (of as many bits as f16) where they are multiplied; the inverse of I + M is made in float32. The
// state's bits depend on where chunks begin, so on how a text is cut.
//
// Bytes at T tokens of Qwen3-Next-80B: 132 KB each, in and out. Reached on one H200, 2026-11-23: T
// = 512 89 us, 2,048 276, 8,192 1,028, where token by token takes 352, 1,375 and 5,721. What binds
// is the chain of chunks, of which a block has 32 columns: docs/lab/delta-net.md.
#include <algorithm>

#include "ops/delta_rule/delta_rule_within_chunk.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

using namespace delta;

// From chunk to chunk. A block has 32 columns of a value head's state, grid (4 HV, S); a warp has
// 16 rows of the state in registers, and 16 rows by 16 columns of V' and O.
constexpr int kColumnsOfBlock = 32, kTiles = kDim / kColumnsOfBlock, kAcrossThreads = 256;
constexpr int kStages = NIBBLE_CUDA_SM == 121 ? 1 : 2;
constexpr int kStatePitch = kColumnsOfBlock + 4;  // floats

struct AcrossMemory {
  static constexpr int kRowsBytes = kChunk * HalfRows<kDim>::kPitch;
  static constexpr int kStageBytes =
      3 * kRowsBytes + kChunk * HalfRows<kChunk>::kPitch + kChunk * 4;
  static constexpr int kStateBytes = kDim * kStatePitch * 4, kValueBytes = kChunk * kStatePitch * 4;
  static constexpr int kBytes = kStages * kStageBytes + kStateBytes + 2 * kValueBytes;
};

// What a block brings of a chunk.
struct ChunkRows {
  HalfRows<kDim> w, q, k;
  HalfRows<kChunk> p;
  uint32_t sums;

  __device__ __forceinline__ explicit ChunkRows(uint32_t at)
      : w{at},
        q{at + AcrossMemory::kRowsBytes},
        k{at + 2 * AcrossMemory::kRowsBytes},
        p{at + 3 * AcrossMemory::kRowsBytes},
        sums(at + AcrossMemory::kStageBytes - kChunk * 4) {}
  __device__ __forceinline__ void bring(const ChunkParams& c, int64_t index, int h, int64_t first,
                                        int tokens) const {
    const Params& a = c.a;
    const int64_t at = index * a.d.value_heads + h, stride = 2 * int64_t{a.d.channels};
    const float* const row = a.mixed + first * a.d.channels + h / a.d.ratio * kDim;
    w.bring<kAcrossThreads, kChunk>(c.w + at * kChunk * kDim, kDim, kChunk);
    q.bring<kAcrossThreads, kChunk>(reinterpret_cast<const uint16_t*>(row), stride, tokens);
    k.bring<kAcrossThreads, kChunk>(reinterpret_cast<const uint16_t*>(row + a.d.key_width), stride,
                                    tokens);
    p.bring<kAcrossThreads, kChunk>(c.p + at * kChunk * kChunk, kChunk, kChunk);
    if (threadIdx.x < kChunk / 4)
      cuda::async_copy_16(sums + threadIdx.x * 16, c.sums + at * kChunk + threadIdx.x * 4);
    cuda::async_copy_commit();
  }
};

// What a block keeps in shared memory, [][kStatePitch].
struct AcrossRows {
  float* state;    // in TF32
  float* fresh;    // V', in TF32
  float* decayed;  // exp(G_64 - G) V', in TF32
};

// A chunk: its U from `values`, in whose place its O comes; s, a warp's 16 rows of the state, moves
// on. The warps' 16 rows of V' and O are 16 m .., their 16 columns `half` ..
__device__ __forceinline__ void cross_chunk(float (&s)[4][4], const AcrossRows& to,
                                            const ChunkRows& rows, const float* sums,
                                            const float2 (&u)[2][2], float* values, int64_t stride,
                                            int tokens) {
  const int warp = threadIdx.x / 32, m = warp % 4, half = warp / 4 * 16;
  const float scale = rsqrtf(static_cast<float>(kDim)), last = sums[kChunk - 1];
  float known[2][4] = {}, o[2][4] = {};
#pragma unroll 2
  for (int k = 0; k < kDim; k += 16) {
    uint32_t of_w[4], of_q[4];
    rows.w.load(of_w, 16 * m, k), rows.q.load(of_q, 16 * m, k);
    cuda::multiply_rows<kStatePitch>(known, cuda::F16Rows(of_w), to.state + half, k);
    cuda::multiply_rows<kStatePitch>(o, cuda::F16Rows(of_q), to.state + half, k);
  }
  cuda::each_pair<2>([&](int n, int e, int row, int column) {
    const float sum = sums[16 * m + row], by = scale * expf(sum), left = expf(last - sum);
    const float x = u[n][e / 2].x - known[n][e], y = u[n][e / 2].y - known[n][e + 1];
    const int at = (16 * m + row) * kStatePitch + half + column;
    cuda::put_tf32(to.fresh + at, x, y);
    cuda::put_tf32(to.decayed + at, x * left, y * left);
    o[n][e] *= by, o[n][e + 1] *= by;
  });
  __syncthreads();
#pragma unroll 1
  for (int k = 0; k <= 16 * m; k += 16) {
    uint32_t of_p[4];
    rows.p.load(of_p, 16 * m, k);
    cuda::multiply_rows<kStatePitch>(o, cuda::F16Rows(of_p), to.fresh + half, k);
  }
  cuda::each_pair<2>([&](int n, int e, int row, int column) {
    if (16 * m + row < tokens)
      *reinterpret_cast<float2*>(values + (16 * m + row) * stride + half + column) = {o[n][e],
                                                                                      o[n][e + 1]};
  });
  const float kept = expf(last);
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] *= kept;
#pragma unroll
  for (int k = 0; k < kChunk; k += 16) {
    uint32_t of_k[4];
    rows.k.load_turned(of_k, k, 16 * warp);
    cuda::multiply_rows<kStatePitch>(s, cuda::F16Rows(of_k), to.decayed, k);
  }
}

__global__ void __launch_bounds__(kAcrossThreads, 1)
    across_chunks(const __grid_constant__ ChunkParams c) {
  extern __shared__ __align__(128) uint8_t shared[];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const Params& a = c.a;
  const Span span = a.spans[blockIdx.y];
  const int chunks = Chunks::of(span.q_len);
  if (chunks == 0) return;
  const int64_t before = Chunks{a.spans, a.num_spans}.before(static_cast<int>(blockIdx.y));
  const int h = static_cast<int>(blockIdx.x) / kTiles;
  const int first_column = static_cast<int>(blockIdx.x) % kTiles * kColumnsOfBlock;
  const int warp = threadIdx.x / 32, m = warp % 4, half = warp / 4 * 16;
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  auto* const state = reinterpret_cast<float*>(shared + kStages * AcrossMemory::kStageBytes);
  float* const fresh = state + kDim * kStatePitch;
  const AcrossRows rows{state, fresh, fresh + kChunk * kStatePitch};
  const int64_t size = int64_t{kDim} * a.d.value_width,
                corner = (int64_t{h} * kDim + 16 * warp) * kDim + first_column;
  const int32_t from = a.from[span.slot];
  float s[4][4];
  cuda::each_pair<4>([&](int n, int e, int row, int column) {
    float2 x{0, 0};
    if (from != RecurrentLayer::kNoState)
      x = __ldcg(
          reinterpret_cast<const float2*>(a.state + from * size + corner + row * kDim + column));
    s[n][e] = x.x, s[n][e + 1] = x.y;
  });
  const auto bring = [&](int i) {
    ChunkRows(base + i % kStages * AcrossMemory::kStageBytes)
        .bring(c, before + i, h, span.q_start + i * kChunk, min(kChunk, span.q_len - i * kChunk));
  };
  if (kStages > 1) bring(0);
#pragma unroll 1
  for (int i = 0; i < chunks; ++i) {
    if (kStages == 1) {
      __syncthreads();
      bring(i);
    }
    cuda::each_pair<4>([&](int n, int e, int row, int column) {
      cuda::put_tf32(state + (16 * warp + row) * kStatePitch + column, s[n][e], s[n][e + 1]);
    });
    const int tokens = min(kChunk, span.q_len - i * kChunk);
    float* const values = a.mixed + int64_t{span.q_start + i * kChunk} * a.d.channels +
                          2 * a.d.key_width + h * kDim + first_column;
    float2 u[2][2];
    cuda::each_pair<2>([&](int n, int e, int row, int column) {
      u[n][e / 2] = {0, 0};
      if (16 * m + row < tokens)
        u[n][e / 2] = __ldcg(reinterpret_cast<const float2*>(
            values + int64_t{16 * m + row} * a.d.channels + half + column));
    });
    cuda::async_copy_wait<0>();
    __syncthreads();
    if (kStages > 1 && i + 1 < chunks) bring(i + 1);
    const ChunkRows now(base + i % kStages * AcrossMemory::kStageBytes);
    cross_chunk(s, rows, now, reinterpret_cast<const float*>(shared + (now.sums - base)), u, values,
                a.d.channels, tokens);
  }
  float* const left = a.state + a.to[span.slot] * size + corner;
  cuda::each_pair<4>([&](int n, int e, int row, int column) {
    *reinterpret_cast<float2*>(left + row * kDim + column) = {s[n][e], s[n][e + 1]};
  });
}

// A warp a token and value head of the spans in chunks.
constexpr int kNormWarps = 8;
__global__ void __launch_bounds__(kNormWarps * 32) norm_tokens(const __grid_constant__ Params a) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const auto i = static_cast<int32_t>(blockIdx.x * kNormWarps + threadIdx.x / 32);
  const int32_t h = i % a.d.value_heads, t = i / a.d.value_heads;
  if (t >= a.num_tokens || span_of_token(a.spans, a.num_spans, a.num_tokens, t).q_len <= kFewTokens)
    return;
  norm_gated(a, t, h, a.mixed + int64_t{t} * a.d.channels + 2 * a.d.key_width + h * kDim);
}

}  // namespace

void delta_rule_chunks(Ctx& cx, const Tensor& att, const RecurrentLayer& state,
                       const DeltaRuleIn& in, const DeltaRuleDesc& desc,
                       const DeltaRuleWeights& weights, const Step& s) {
  if (s.num_tokens == 0) return;
  CHECK(desc.key_dim == kDim && desc.value_dim == kDim && desc.taps == kTaps);
  if (is_decode(s)) return delta_rule_decode(cx, att, state, in, desc, weights, s);
  Scratch scratch(cx.scratch);
  ChunkParams c{.a = params_of(att, state, in, desc, weights, s)};
  c.a.mixed = scratch.take<float>(s.num_tokens * desc.channels());
  c.a.decayed = scratch.take<float>(s.num_tokens * 2 * desc.value_heads);
  const int64_t most = most_delta_chunks(s.num_tokens), heads = desc.value_heads * most;
  c.w = scratch.take<uint16_t>(heads * kChunk * kDim);
  c.p = scratch.take<uint16_t>(heads * kChunk * kChunk);
  c.sums = scratch.take<float>(heads * kChunk);
  if (s.num_spans > 1) decode_spans(cx, c.a, kFewTokens);
  constexpr auto kRelease = cuda::Release::kAfterWait;
  const auto dim = [](int64_t n) { return static_cast<unsigned>(n); };
  cuda::launch(cx.stream, prepare_tile,
               {.grid = dim3(dim((s.num_tokens + kTile - 1) / kTile), dim(desc.key_heads)),
                .block = dim3(kPrepareThreads),
                .release = kRelease},
               c.a);
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
                .smem_bytes = AcrossMemory::kBytes,
                .release = kRelease},
               c);
  cuda::launch(cx.stream, norm_tokens,
               {.grid = dim3(dim((s.num_tokens * desc.value_heads + kNormWarps - 1) / kNormWarps)),
                .block = dim3(kNormWarps * 32),
                .release = kRelease},
               c.a);
}

}  // namespace nibble::ops::gpu
