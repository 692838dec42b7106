// The second kernel of delta_rule_chunks_cuda.cu: U, W and P of all chunks at once.
#pragma once

#include "ops/delta_rule/delta_rule_chunks.cuh"

namespace nibble::ops::gpu::delta {

// Within a chunk: U, W, P, decays. A block a chunk and value head, grid (HV, chunks of a piece); a
// warp has 16 rows of k k^T and q k^T, 16 columns of the inverse, then 32 of U and W.
inline constexpr int kWithinThreads = 128;
inline constexpr int kPitch = 72;  // floats of a row of M, and of I + M's inverse
inline constexpr int kWithinBytes = 2 * kChunk * RowsOfDim::kPitch + kChunk * kPitch * 4;

// G, by one warp.
__device__ __forceinline__ void sum_decays(float* sums, float* betas, const float2* gates,
                                           int64_t stride, int tokens) {
  const int lane = threadIdx.x, first = 2 * lane;
  const float2 a = first < tokens ? __ldcg(gates + first * stride) : float2{0, 0};
  const float2 b = first + 1 < tokens ? __ldcg(gates + (first + 1) * stride) : float2{0, 0};
  float upto = a.x + b.x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_up_sync(0xffffffff, upto, step);
    if (lane >= step) upto += other;
  }
  sums[first] = upto - b.x, sums[first + 1] = upto;
  betas[first] = a.y, betas[first + 1] = b.y;
}

// Of a chunk, one matrix [kChunk][kPitch] in shared memory: first M, turned, above the diagonal
// ([j][i]: M_ij); then T = (I + M)^-1. Last T diag(beta, power of v), to be cut to TF32, up to the
// diagonal's tiles of 8; and behind them, row i in row 63 - i, T diag(beta exp(G)) in f16, up to
// its tiles of 16, as load_matrices() takes them.
__device__ __forceinline__ int place_of_f16(int row) {
  return (kChunk - 1 - row) * kPitch + kChunk - row / 8 * 8;
}

// A float32 as the sum of two of TF32, to 21 bits. Cut, not rounded: that takes one instruction.
struct Split {
  float high, low;
  Split() = default;
  __device__ __forceinline__ explicit Split(float x) : high(cut(x)), low(cut(x - high)) {}
  static __device__ __forceinline__ float cut(float x) {
    return __uint_as_float(__float_as_uint(x) & ~0x1fffu);
  }
};

// 16 x 16, turned, as sums of mma.m16n8k8 come: tile n, [column g and g + 8][row 8n + 2p and + 1].
// As its a, k 2p stands for p, 2p + 1 for p + 4.
using TurnedTile = float[2][4];
__device__ __forceinline__ void split(Split (&to)[2][4], const TurnedTile& x) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) to[n][e] = Split(x[n][e]);
}
// d += a b of k 8 ks ..
__device__ __forceinline__ void multiply_split(float (&d)[4], const Split (&a)[2][4], int ks,
                                               float b0, float b1) {
  const Split x(b0), y(b1);
  const Split(&of)[4] = a[ks];
  cuda::mma_tf32(d, of[0].low, of[2].low, of[1].low, of[3].low, x.high, y.high);
  cuda::mma_tf32(d, of[0].high, of[2].high, of[1].high, of[3].high, x.low, y.low);
  cuda::mma_tf32(d, of[0].high, of[2].high, of[1].high, of[3].high, x.high, y.high);
}

// T's tile on the diagonal from 16 tile on, in M's place, by a warp: forward substitution, a column
// a lane.
__device__ __forceinline__ void invert_tile(float* matrix, int tile) {
  const int c = threadIdx.x % 32;
  float* const at = matrix + 16 * tile * kPitch + 16 * tile;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = i == c ? 1 : 0;
#pragma unroll
  for (int j = 0; j < 15; ++j)
#pragma unroll
    for (int i = (j + 1) / 4 * 4; i < 16; i += 4) {
      const float4 m = *reinterpret_cast<const float4*>(at + j * kPitch + i);
      if (i > j) x[i] = fmaf(-m.x, x[j], x[i]);
      if (i + 1 > j) x[i + 1] = fmaf(-m.y, x[j], x[i + 1]);
      if (i + 2 > j) x[i + 2] = fmaf(-m.z, x[j], x[i + 2]);
      x[i + 3] = fmaf(-m.w, x[j], x[i + 3]);
    }
  __syncwarp();
  if (c < 16) {
#pragma unroll
    for (int i = 0; i < 16; ++i) at[i * kPitch + c] = x[i];
  }
}

// T from M, and what is made of it. A warp has 16 columns, tiles T_cc to T_3c: T_bc = -T_bb times
// the sum of M_bj T_jc, of j from c to b - 1. `of_u`, `of_w`: factors of columns.
__device__ __forceinline__ void invert(float* matrix, const float* of_u, const float* of_w) {
  constexpr int kTilesOfT = kChunk / 16;
  const int c = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  invert_tile(matrix, c);
  __syncthreads();
  TurnedTile t[kTilesOfT];
  Split x[kTilesOfT - 1][2][4];
#pragma unroll
  for (int b = 0; b < kTilesOfT; ++b) {
    const float* const of_b = matrix + 16 * b * kPitch + 16 * b;
    if (b == c) {
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          t[b][n][e] = of_b[(8 * n + 2 * p + e % 2) * kPitch + g + e / 2 * 8];
    } else if (b > c) {
      TurnedTile sum = {};
#pragma unroll
      for (int j = 0; j < b; ++j) {
        if (j < c) continue;
        const float* const m = matrix + (16 * j + 2 * p) * kPitch + 16 * b + g;
#pragma unroll
        for (int ks = 0; ks < 2; ++ks)
#pragma unroll
          for (int n = 0; n < 2; ++n)
            multiply_split(sum[n], x[j], ks, m[8 * ks * kPitch + 8 * n],
                           m[(8 * ks + 1) * kPitch + 8 * n]);
      }
      Split y[2][4];
      split(y, sum);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float d[4] = {};
#pragma unroll
        for (int ks = 0; ks <= n; ++ks) {
          const float2 of =
              *reinterpret_cast<const float2*>(of_b + (8 * n + g) * kPitch + 8 * ks + 2 * p);
          multiply_split(d, y, ks, of.x, of.y);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) t[b][n][e] = -d[e];
      }
    }
    if (b + 1 < kTilesOfT && b >= c) split(x[b], t[b]);
  }
  __syncthreads();  // M and the diagonal's tiles have been read
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = 16 * c + g + 8 * i;
    const float by_u = of_u[column] * kBeforeCut, by_w = of_w[column];
#pragma unroll
    for (int b = 0; b < kTilesOfT; ++b) {
      if (b < c) continue;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int row = 16 * b + 8 * n + 2 * p + e;
          const float of = t[b][n][2 * i + e];
          if (b > c || n >= i) matrix[row * kPitch + column] = of * by_u;
          reinterpret_cast<uint16_t*>(matrix + place_of_f16(row))[column] =
              static_cast<uint16_t>(cuda::pack_f16(of * by_w, 0));
        }
    }
  }
}

// U's columns `column` .. + 31, by a warp.
__device__ __forceinline__ void make_u(HeadImage& to, const RowsOfDim& v, const float* matrix,
                                       int column) {
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  float d[2][8][4] = {};
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
    uint32_t turned[2][4];
    v.load_turned(turned[0], 16 * k, column), v.load_turned(turned[1], 16 * k, column + 16);
    const cuda::F16Rows of_v[2] = {cuda::F16Rows(turned[0]), cuda::F16Rows(turned[1])};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int s = 2 * k + i;
#pragma unroll
      for (int n = s; n < 8; ++n) {
        const float2 x =
            *reinterpret_cast<const float2*>(matrix + (8 * n + g) * kPitch + 8 * s + 2 * p);
        of_v[0].multiply(d[0][n], i, x.x, x.y), of_v[1].multiply(d[1][n], i, x.x, x.y);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float most = 0;
#pragma unroll
    for (const auto& of : d[i])
#pragma unroll
      for (const float x : of) most = fmaxf(most, fabsf(x));
    const float by = fitting(warp_max(most));
    if (lane == 0) to.writes.decays.units[column / 16 + i] = 1 / by;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      const auto pair = [&](int n, int e) {
        return cuda::pack_f16(d[i][n][e] * by, d[i][n][e + 1] * by);
      };
      to.u[column / 16 + i][n / 2][lane] = {pair(n, 0), pair(n, 2), pair(n + 1, 0), pair(n + 1, 2)};
    }
  }
}

// W's columns `column` .. + 31, by a warp, to shared memory.
__device__ __forceinline__ void make_w(const RowsOfDim& to, const RowsOfDim& k, uint32_t matrix,
                                       int column) {
  constexpr int kTilesOfT = kChunk / 16;
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  float d[kTilesOfT][4][4] = {};
#pragma unroll
  for (int s = 0; s < kTilesOfT; ++s) {
    uint32_t b[2][4];
    k.load_turned_b(b[0], 16 * s, column), k.load_turned_b(b[1], 16 * s, column + 16);
#pragma unroll
    for (int m = s; m < kTilesOfT; ++m) {
      uint32_t a[4];
      cuda::load_matrices(
          a, matrix + place_of_f16(16 * m + lane % 16) * 4 + (16 * s + lane / 16 * 8) * 2);
#pragma unroll
      for (int n = 0; n < 4; ++n)
        cuda::mma_f16(d[m][n], a[0], a[1], a[2], a[3], b[n / 2][n % 2 * 2],
                      b[n / 2][n % 2 * 2 + 1]);
    }
  }
#pragma unroll
  for (int m = 0; m < kTilesOfT; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < 4; ++n)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to.at + (16 * m + g + 8 * i) * to.kPitch +
                                                     (column + 8 * n + 2 * p) * 2),
                     "r"(cuda::pack_f16(d[m][n][2 * i], d[m][n][2 * i + 1]))
                     : "memory");
}

// A chunk's rows from shared memory, as the third kernel takes them.
__device__ __forceinline__ void store_rows(uint8_t* to, const uint8_t* from) {
  for (int i = threadIdx.x; i < kChunk * RowsOfDim::kPieces; i += kWithinThreads) {
    const int row = i / RowsOfDim::kPieces, piece = i % RowsOfDim::kPieces;
    *reinterpret_cast<uint4*>(to + place_of_piece(row, piece)) =
        *reinterpret_cast<const uint4*>(from + row * RowsOfDim::kPitch + piece * 16);
  }
}

static __device__ __forceinline__ void make_chunk(const ChunkParams& c, int index, int h) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float sums[kChunk], betas[kChunk], factors[kChunk], values[kChunk];
  const Params& a = c.a;
  const auto chunk = Chunks{a.spans, a.num_spans}.find(index);
  if (chunk.tokens == 0) return;
  const int head = h / a.d.ratio;
  HeadImage& image = c.heads[int64_t{index} * a.d.value_heads + h];
  const uint16_t* const rows = c.rows + chunk.first * a.d.channels;
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const RowsOfDim k{base}, q{base + kChunk * RowsOfDim::kPitch};
  auto* const matrix = reinterpret_cast<float*>(shared + 2 * kChunk * k.kPitch);
  k.bring<kWithinThreads, kChunk>(rows + a.d.key_width + head * kDim, a.d.channels, chunk.tokens);
  q.bring<kWithinThreads, kChunk>(rows + head * kDim, a.d.channels, chunk.tokens);
  cuda::async_copy_commit();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  if (warp == 0) {
    sum_decays(sums, betas,
               reinterpret_cast<const float2*>(a.decayed) + chunk.first * a.d.value_heads + h,
               a.d.value_heads, chunk.tokens);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = 2 * lane + i;
      const float upto = quick_exp(sums[at]);
      factors[at] = betas[at] * upto;
      values[at] = at < chunk.tokens
                       ? betas[at] * __ldcg(c.powers + (chunk.first + at) * a.d.value_heads + h)
                       : 0;
      image.writes.decays.left[at] = quick_exp(sums[kChunk - 1] - sums[at]);
      image.reads.by[at] = rsqrtf(static_cast<float>(kDim)) * upto;
      if (at == kChunk - 1) image.writes.decays.kept = upto;
    }
  }
  cuda::async_copy_wait<0>();
  __syncthreads();
  if (h % a.d.ratio == 0) {
    KeyImage& keys = c.keys[int64_t{index} * (a.d.value_heads / a.d.ratio) + head];
    store_rows(keys.k, shared);
    store_rows(keys.q, shared + kChunk * k.kPitch);
  }

  float kk[8][4] = {}, qk[8][4] = {};
#pragma unroll 2
  for (int at = 0; at < kDim; at += 16) {
    uint32_t of_k[4], of_q[4];
    k.load(of_k, 16 * warp, at), q.load(of_q, 16 * warp, at);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n > warp) break;
      uint32_t b[4];
      k.load_b(b, 16 * n, at);
      cuda::mma_f16(kk[2 * n], of_k[0], of_k[1], of_k[2], of_k[3], b[0], b[1]);
      cuda::mma_f16(kk[2 * n + 1], of_k[0], of_k[1], of_k[2], of_k[3], b[2], b[3]);
      cuda::mma_f16(qk[2 * n], of_q[0], of_q[1], of_q[2], of_q[3], b[0], b[1]);
      cuda::mma_f16(qk[2 * n + 1], of_q[0], of_q[1], of_q[2], of_q[3], b[2], b[3]);
    }
  }
  __syncthreads();  // q has been read: v comes there while the inverse is made
  const RowsOfDim& v = q;
  v.bring<kWithinThreads, kChunk>(rows + 2 * a.d.key_width + h * kDim, a.d.channels, chunk.tokens);
  cuda::async_copy_commit();
  const float scale = rsqrtf(static_cast<float>(kDim));
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n / 2 > warp) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * warp + g + 8 * half, j = 8 * n + 2 * p;
      const float d0 = j <= i ? quick_exp(sums[i] - sums[j]) : 0;
      const float d1 = j + 1 <= i ? quick_exp(sums[i] - sums[j + 1]) : 0;
      *reinterpret_cast<uint32_t*>(image.reads.p + i * RowsOfChunk::kPitch + 2 * j) =
          cuda::pack_f16(scale * d0 * qk[n][2 * half], scale * d1 * qk[n][2 * half + 1]);
      matrix[j * kPitch + i] = betas[i] * d0 * kk[n][2 * half];
      matrix[(j + 1) * kPitch + i] = betas[i] * d1 * kk[n][2 * half + 1];
    }
  }
  __syncthreads();
  invert(matrix, values, factors);
  cuda::async_copy_wait<0>();
  __syncthreads();
  make_u(image, v, matrix, 32 * warp);
  __syncthreads();  // v has been read: W comes there
  make_w(q, k, base + 2 * kChunk * k.kPitch, 32 * warp);
  __syncthreads();
  store_rows(image.writes.w, shared + kChunk * k.kPitch);
}

static __global__ void __launch_bounds__(kWithinThreads, 4)
    within_chunk(const __grid_constant__ ChunkParams c, Piece piece) {
  wait_of_piece<false>(piece);
  cuda::griddep_launch_dependents();
  make_chunk(c, piece.first + static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.x));
  wait_of_piece<true>(piece);
}

}  // namespace nibble::ops::gpu::delta
