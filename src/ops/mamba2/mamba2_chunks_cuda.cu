// mamba2 of prompts by chunks of 64 tokens, with tensor cores (SSD of Dao and Gu, section 6): what
// does not depend on the state is made of all chunks at once, then their states follow one another.
// Spans of up to 31 tokens go token by token, one token of each sequence by mamba2_ring_cuda.cu.
//   as mamba2_any_cuda.cu, but for its bits
// Needs N = 128, P = 64, 4 taps, NH a multiple of 4.
//
// With G the sums of a chunk's logarithms of decay, D_ij = exp(G_i - G_j) for j <= i, else 0, and V
// the rows dt x, each row a token:
//   P = (C B^T) D;  Y = exp(G) C S + P V + D x;  S = exp(G_64) S + B^T (exp(G_64 - G) V)
// in which columns of the state never meet.
//
// C and B are kept in f16, each row by a power of two, so that none is too large; P is f16; V and
// the state are float32, and TF32 (of as many bits as f16) where they are multiplied. The state's
// bits depend on where chunks begin, so on how a text is cut.
//
// Bytes at T tokens of Nemotron-3-Nano-30B: 49 KB each, in and out; 8,192 tokens 0.41 GB, 92 us of
// an H200's 4.37 TB/s. Not timed by itself yet: beside token by token, a layer takes 0.9 ms less of
// a prompt of 2,048, 3.4 ms less of 8,192 (2026-11-23, docs/lab/mamba2.md).
#include <algorithm>

#include "cuda/bulk_copy.cuh"
#include "ops/mamba2/mamba2_chunks.cuh"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

using namespace mamba;

// From chunk to chunk. A block has 32 columns of a head's state, grid (2 NH, S); a warp has 16 rows
// of the state in registers, and 16 rows by 16 columns of Y.
constexpr int kColumns = 32, kTiles = kP / kColumns, kAcrossThreads = 256;
constexpr int kStages = NIBBLE_CUDA_SM == 121 ? 1 : 2;
constexpr int kPitch = kColumns + 4;  // floats

struct Stage {
  GroupImage group;
  HeadImage head;
};
struct Operands {  // in TF32
  float state[kN * kPitch], values[kChunk * kPitch], last[kChunk * kPitch];
};
struct AcrossMemory {
  Stage stages[kStages];
  Operands operands[kStages];
  uint64_t full[kStages];
};

// By one thread: what was made of a chunk, for head h.
__device__ __forceinline__ void bring_chunk(Stage& to, uint32_t full, const ChunkParams& p,
                                            int64_t index, int h) {
  const int32_t groups = p.a.d.heads / p.a.d.group_heads;
  cuda::bulk_copy(cuda::shared_address(&to.group),
                  p.groups + index * groups + h / p.a.d.group_heads, sizeof(GroupImage), full);
  cuda::bulk_copy(cuda::shared_address(&to.head), p.heads + index * p.a.d.heads + h,
                  sizeof(HeadImage), full);
}

// A chunk: s, a warp's 16 rows of the state, moves on; y, its rows 16 m .. of 16 columns from
// `half` on, is added to.
__device__ __forceinline__ void cross_chunk(float (&s)[4][4], float (&y)[2][4], const Stage& stage,
                                            const Operands& from, int half) {
  const int warp = threadIdx.x / 32, m = warp % 4, first = 16 * m;
  const HeadImage& head = stage.head;
  const RowsOfN c{static_cast<uint32_t>(__cvta_generic_to_shared(stage.group.c))},
      b{static_cast<uint32_t>(__cvta_generic_to_shared(stage.group.b))};
  const RowsOfChunk p{static_cast<uint32_t>(__cvta_generic_to_shared(head.p))};
  float o[2][4] = {};
#pragma unroll
  for (int k = 0; k < kN; k += 16) {
    uint32_t of_c[4];
    c.load(of_c, first, k);
    cuda::multiply_rows<kPitch>(o, cuda::F16Rows(of_c), from.state + half, k);
  }
  cuda::each_pair<2>([&](int n, int e, int row, int) {
    const float by = head.row[first + row];
    o[n][e] *= by, o[n][e + 1] *= by;
  });
#pragma unroll 1
  for (int k = 0; k <= first; k += 16) {
    uint32_t of_p[4];
    p.load(of_p, first, k);
    cuda::multiply_rows<kPitch>(o, cuda::F16Rows(of_p), from.values + half, k);
  }
  cuda::each_pair<2>([&](int n, int e, int row, int) {
    const float by = head.out[first + row];
    y[n][e] = fmaf(by, o[n][e], y[n][e]), y[n][e + 1] = fmaf(by, o[n][e + 1], y[n][e + 1]);
  });
  const float kept = head.kept;
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) s[n][e] *= kept;
#pragma unroll
  for (int k = 0; k < kChunk; k += 16) {
    uint32_t of_b[4];
    b.load_turned(of_b, k, 16 * warp);
    cuda::multiply_rows<kPitch>(s, cuda::F16Rows(of_b), from.last, k);
  }
}

__global__ void __launch_bounds__(kAcrossThreads, 1)
    across_chunks(const __grid_constant__ ChunkParams p) {
  extern __shared__ __align__(128) uint8_t raw[];
  auto& shared = *reinterpret_cast<AcrossMemory*>(raw);
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const Params& a = p.a;
  const Span span = a.spans[blockIdx.y];
  const int chunks = Chunks::of(span.q_len);
  if (chunks == 0) return;
  const int64_t before = Chunks{a.spans, a.num_spans}.before(static_cast<int>(blockIdx.y));
  const int h = static_cast<int>(blockIdx.x) / kTiles, tile = static_cast<int>(blockIdx.x) % kTiles;
  const int warp = threadIdx.x / 32, m = warp % 4, half = warp / 4 * 16;
  const float skip = a.w.d[h];
  if (threadIdx.x < kStages) cuda::barrier_init(cuda::shared_address(&shared.full[threadIdx.x]), 2);
  cuda::barrier_init_fence();
  __syncthreads();
  const auto bring = [&](int i) {
    bring_chunk(shared.stages[i % kStages], cuda::shared_address(&shared.full[i % kStages]), p,
                before + i, h);
  };
  if (threadIdx.x == 0) bring(0);
  const int64_t corner = (int64_t{h} * kN + 16 * warp) * kP + tile * kColumns,
                size = int64_t{kN} * a.d.inner;
  const int32_t from = a.from[span.slot];
  float s[4][4];
  cuda::each_pair<4>([&](int n, int e, int row, int column) {
    float2 v{0, 0};
    if (from != RecurrentLayer::kNoState)
      v = __ldcg(
          reinterpret_cast<const float2*>(a.state + from * size + corner + row * kP + column));
    s[n][e] = v.x, s[n][e + 1] = v.y;
  });
  // x of the warp's part of Y, which comes in its place.
  float* const x0 =
      a.mixed + (int64_t{span.q_start} + 16 * m) * a.d.channels + h * kP + tile * kColumns + half;
  const auto place = [&](int i, int row, int column) {
    return reinterpret_cast<float2*>(x0 + (int64_t{i} * kChunk + row) * a.d.channels + column);
  };
  const auto is_there = [&](int i, int row) { return i * kChunk + 16 * m + row < span.q_len; };
  float2 x[2][2];
  const auto bring_x = [&](int i) {
    cuda::each_pair<2>([&](int n, int e, int row, int column) {
      x[n][e / 2] = is_there(i, row) ? __ldcg(place(i, row, column)) : float2{0, 0};
    });
  };
  bring_x(0);
#pragma unroll 1
  for (int i = 0; i < chunks; ++i) {
    const Stage& stage = shared.stages[i % kStages];
    Operands& to = shared.operands[i % kStages];
    cuda::each_pair<4>([&](int n, int e, int row, int column) {
      cuda::put_tf32(to.state + (16 * warp + row) * kPitch + column, s[n][e], s[n][e + 1]);
    });
    cuda::barrier_wait(cuda::shared_address(&shared.full[i % kStages]), i / kStages % 2);
    float y[2][4];
    cuda::each_pair<2>([&](int n, int e, int row, int column) {
      const float2 v = x[n][e / 2];
      const float by = stage.head.value[16 * m + row], last = stage.head.last[16 * m + row];
      const int at = (16 * m + row) * kPitch + half + column;
      cuda::put_tf32(to.values + at, v.x * by, v.y * by);
      cuda::put_tf32(to.last + at, v.x * by * last, v.y * by * last);
      y[n][e] = skip * v.x, y[n][e + 1] = skip * v.y;
    });
    __syncthreads();
    if (kStages > 1 && i + 1 < chunks && threadIdx.x == 0) bring(i + 1);
    if (i + 1 < chunks) bring_x(i + 1);
    cross_chunk(s, y, stage, to, half);
    cuda::each_pair<2>([&](int n, int e, int row, int column) {
      if (is_there(i, row)) *place(i, row, column) = {y[n][e], y[n][e + 1]};
    });
    if (kStages > 1) continue;
    __syncthreads();
    if (i + 1 < chunks && threadIdx.x == 0) bring(i + 1);
  }
  float* const left = a.state + a.to[span.slot] * size + corner;
  cuda::each_pair<4>([&](int n, int e, int row, int column) {
    *reinterpret_cast<float2*>(left + row * kP + column) = {s[n][e], s[n][e + 1]};
  });
}

// A warp a token and group: kQuads elements by four of each lane.
constexpr int kNormWarps = 8;
template <int kQuads>
__global__ void __launch_bounds__(kNormWarps * 32) norm_tokens(const __grid_constant__ Params a) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int groups = a.d.heads / a.d.group_heads, width = a.d.group_heads * kP;
  const auto i = static_cast<int32_t>(blockIdx.x * kNormWarps + threadIdx.x / 32);
  const int64_t t = i / groups, first = int64_t{i % groups} * width;
  if (t >= a.num_tokens) return;
  const auto* const y = reinterpret_cast<const float4*>(a.mixed + t * a.d.channels + first);
  const auto* const z = reinterpret_cast<const float4*>(a.in + t * a.d.width + first);
  float4 of_y[kQuads], of_z[kQuads];
#pragma unroll
  for (int k = 0; k < kQuads; ++k) {
    const int at = 32 * k + threadIdx.x % 32;
    of_y[k] = 4 * at < width ? __ldcg(y + at) : float4{};
    of_z[k] = 4 * at < width ? __ldcg(z + at) : float4{};
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kQuads; ++k) {
    float4& v = of_y[k];
    v.x *= silu(of_z[k].x), v.y *= silu(of_z[k].y), v.z *= silu(of_z[k].z), v.w *= silu(of_z[k].w);
    squares = fmaf(v.x, v.x, squares), squares = fmaf(v.y, v.y, squares);
    squares = fmaf(v.z, v.z, squares), squares = fmaf(v.w, v.w, squares);
  }
  const float by = rsqrtf(warp_sum(squares) / static_cast<float>(width) + a.w.eps);
  auto* const att = reinterpret_cast<uint2*>(a.att + t * a.d.inner + first);
  const auto* const norm = reinterpret_cast<const float4*>(a.w.norm + first);
#pragma unroll
  for (int k = 0; k < kQuads; ++k) {
    const int at = 32 * k + threadIdx.x % 32;
    if (4 * at >= width) break;
    const float4 w = norm[at], v = of_y[k];
    att[at] = {cuda::pack_bf16(w.x * v.x * by, w.y * v.y * by),
               cuda::pack_bf16(w.z * v.z * by, w.w * v.w * by)};
  }
}

void norm_groups(Ctx& cx, const Params& a) {
  const int width = a.d.group_heads * kP;
  const int64_t warps = int64_t{a.num_tokens} * (a.d.heads / a.d.group_heads);
  cuda::launch(cx.stream, width <= 512 ? norm_tokens<4> : norm_tokens<kMostChunkHeads * kP / 128>,
               {.grid = dim3(static_cast<unsigned>((warps + kNormWarps - 1) / kNormWarps)),
                .block = dim3(kNormWarps * 32),
                .release = cuda::Release::kAfterWait},
               a);
}

}  // namespace

void mamba2_chunks(Ctx& cx, const Tensor& att, const RecurrentLayer& state, const Tensor& in,
                   const Mamba2Desc& desc, const Mamba2Weights& weights, const Step& s) {
  // A few tokens of each sequence, as far as can be told: the next, or drafts that are verified.
  const bool is_few = s.num_tokens <= 8 * s.num_spans && s.num_tokens - s.num_spans < kChunk;
  if (is_few || s.num_tokens <= kFewTokens)
    return mamba2_ring(cx, att, state, in, desc, weights, s);
  CHECK(desc.state_dim == kN && desc.head_dim == kP && desc.taps == kTaps &&
        desc.group_heads() <= kMostChunkHeads);
  Scratch scratch(cx.scratch);
  ChunkParams p{.a = params_of(att, state, in, desc, weights, s)};
  p.a.mixed = scratch.take<float>(s.num_tokens * desc.channels());
  p.a.decayed = scratch.take<float>(s.num_tokens * 2 * desc.heads);
  const int64_t most = most_mamba_chunks(s.num_tokens);
  p.groups = scratch.take<GroupImage>(most * desc.groups);
  p.heads = scratch.take<HeadImage>(most * desc.heads);
  constexpr auto kRelease = cuda::Release::kAfterWait;
  const auto dim = [](int64_t n) { return static_cast<unsigned>(n); };
  cuda::launch(cx.stream, prepare_tile,
               {.grid = dim3(dim((s.num_tokens + kTile - 1) / kTile),
                             dim((desc.channels() + kPrepareThreads - 1) / kPrepareThreads)),
                .block = dim3(kPrepareThreads),
                .release = kRelease},
               p.a);
  if (s.num_spans > 1) recur_spans(cx, p.a, kFewTokens);
  const int64_t chunks = std::min<int64_t>(most, s.num_tokens / kChunk + s.num_spans);
  cuda::launch(cx.stream, within_chunk,
               {.grid = dim3(dim(chunks), dim(desc.groups)),
                .block = dim3(kWithinThreads),
                .release = kRelease},
               p);
  cuda::launch(cx.stream, across_chunks,
               {.grid = dim3(dim(desc.heads * kTiles), dim(s.num_spans)),
                .block = dim3(kAcrossThreads),
                .smem_bytes = sizeof(AcrossMemory),
                .release = kRelease},
               p);
  norm_groups(cx, p.a);
}

}  // namespace nibble::ops::gpu
