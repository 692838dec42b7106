// The second kernel of delta_rule_chunks_cuda.cu: U, W and P of all chunks at once.
#pragma once

#include "ops/delta_rule/delta_rule_chunks.cuh"

namespace nibble::ops::gpu::delta {

// Within a chunk: U, W, P, decays. A block a chunk and value head, grid (chunks of a piece, HV);
// a warp has 16 rows of k k^T and q k^T, then 32 columns of U and W.
inline constexpr int kWithinThreads = 128, kPitch = 68;  // floats of a row of I + M's inverse
inline constexpr int kWithinBytes = 2 * kChunk * RowsOfDim::kPitch + kChunk * kPitch * 4;

// G, by one warp.
__device__ __forceinline__ void sum_decays(float* sums, float* betas, const float2* gates,
                                           int64_t stride, int tokens) {
  const int lane = threadIdx.x, first = 2 * lane;
  const float2 a = first < tokens ? gates[first * stride] : float2{0, 0};
  const float2 b = first + 1 < tokens ? gates[(first + 1) * stride] : float2{0, 0};
  float upto = a.x + b.x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_up_sync(0xffffffff, upto, step);
    if (lane >= step) upto += other;
  }
  sums[first] = upto - b.x, sums[first + 1] = upto;
  betas[first] = a.y, betas[first + 1] = b.y;
}

// (I + M)^-1 by forward substitution, 16 rows at a time: of the diagonal's tiles first, then below
// them. A thread has a column and, below the diagonal, half of the rows. turned[j][i]: M_ij, i > j.
__device__ __forceinline__ void invert(const float* turned, float* inverse) {
  const int c = threadIdx.x % kChunk, half = threadIdx.x / kChunk * 8, tile = c / 16 * 16;
  if (half == 0) {
    float x[16];
    const float* const m = turned + tile * kPitch + tile;
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = tile + i == c ? 1 : 0;
#pragma unroll
    for (int j = 0; j < 15; ++j)
#pragma unroll
      for (int i = j + 1; i < 16; ++i) x[i] = fmaf(-m[j * kPitch + i], x[j], x[i]);
#pragma unroll
    for (int i = 0; i < 16; ++i) inverse[(tile + i) * kPitch + c] = x[i];
  }
  __syncthreads();
#pragma unroll 1
  for (int begin = 16; begin < kChunk; begin += 16) {
    float* const rows = inverse + begin * kPitch;
    if (c < begin) {
      float x[8] = {};
#pragma unroll 4
      for (int j = tile; j < begin; ++j) {
        const float y = inverse[j * kPitch + c];
        const auto* const m = reinterpret_cast<const float4*>(turned + j * kPitch + begin + half);
        const float4 m0 = m[0], m1 = m[1];
        x[0] = fmaf(m0.x, y, x[0]), x[1] = fmaf(m0.y, y, x[1]);
        x[2] = fmaf(m0.z, y, x[2]), x[3] = fmaf(m0.w, y, x[3]);
        x[4] = fmaf(m1.x, y, x[4]), x[5] = fmaf(m1.y, y, x[5]);
        x[6] = fmaf(m1.z, y, x[6]), x[7] = fmaf(m1.w, y, x[7]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) rows[(half + i) * kPitch + c] = x[i];
    }
    __syncthreads();
    float x[8] = {};
    if (c < begin) {
#pragma unroll 1
      for (int k = 0; k < 16; k += 4) {
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) y[i] = rows[(k + i) * kPitch + c];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float4 m = *reinterpret_cast<const float4*>(rows + (half + i) * kPitch + begin + k);
          x[i] = fmaf(-m.x, y[0], x[i]), x[i] = fmaf(-m.y, y[1], x[i]);
          x[i] = fmaf(-m.z, y[2], x[i]), x[i] = fmaf(-m.w, y[3], x[i]);
        }
      }
    }
    __syncthreads();
    if (c < begin) {
#pragma unroll
      for (int i = 0; i < 8; ++i) rows[(half + i) * kPitch + c] = x[i];
    }
    __syncthreads();
  }
}

// U's columns `column` .. + 15, by a warp. `factors`: beta and the power of v.
__device__ __forceinline__ void make_u(HeadImage& to, const RowsOfDim& v, const float* inverse,
                                       const float* factors, int column) {
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  float d[8][4] = {};
#pragma unroll
  for (int k = 0; k < kChunk / 16; ++k) {
    uint32_t turned[4];
    v.load_turned(turned, 16 * k, column);
    const cuda::F16Rows of_v(turned);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int s = 2 * k + i, at = 8 * s + 2 * p;
      const float2 by = *reinterpret_cast<const float2*>(factors + at);
#pragma unroll
      for (int n = s; n < 8; ++n) {
        const float2 x = *reinterpret_cast<const float2*>(inverse + (8 * n + g) * kPitch + at);
        of_v.multiply(d[n], i, cuda::to_tf32(x.x * by.x), cuda::to_tf32(x.y * by.y));
      }
    }
  }
  float most = 0;
#pragma unroll
  for (auto& of : d)
#pragma unroll
    for (const float x : of) most = fmaxf(most, fabsf(x));
  const float by = fitting(warp_max(most));
  if (lane == 0) to.writes.units[column / 16] = 1 / by;
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    const auto pair = [&](int n, int e) { return cuda::pack_f16(d[n][e] * by, d[n][e + 1] * by); };
    to.u[column / 16][n / 2][lane] = {pair(n, 0), pair(n, 2), pair(n + 1, 0), pair(n + 1, 2)};
  }
}

// W's columns `column` .. + 31, by a warp, to shared memory.
__device__ __forceinline__ void make_w(const RowsOfDim& to, const RowsOfDim& k,
                                       const float* inverse, const float* factors, int column) {
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll 1
  for (int m = 0; m < 4; ++m) {
    float d[4][4] = {};
#pragma unroll 1
    for (int s = 0; s <= m; ++s) {
      const auto pair = [&](int row, int at) {
        const float2 x = *reinterpret_cast<const float2*>(inverse + row * kPitch + at);
        return cuda::pack_f16(x.x * factors[at], x.y * factors[at + 1]);
      };
      const int row = 16 * m + g, at = 16 * s + 2 * p;
      const uint32_t a0 = pair(row, at), a1 = pair(row + 8, at), a2 = pair(row, at + 8),
                     a3 = pair(row + 8, at + 8);
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        uint32_t b[4];
        k.load_turned_b(b, 16 * s, column + 8 * n);
        cuda::mma_f16(d[n], a0, a1, a2, a3, b[0], b[1]);
        cuda::mma_f16(d[n + 1], a0, a1, a2, a3, b[2], b[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < 4; ++n)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to.at + (16 * m + g + 8 * i) * to.kPitch +
                                                     (column + 8 * n + 2 * p) * 2),
                     "r"(cuda::pack_f16(d[n][2 * i], d[n][2 * i + 1]))
                     : "memory");
  }
}

// A multiple of 16 bytes from shared memory, as they lie there.
__device__ __forceinline__ void store_image(void* to, const uint8_t* from, int bytes) {
  for (int i = threadIdx.x; i < bytes / 16; i += kWithinThreads)
    static_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
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
  auto* const turned = reinterpret_cast<float*>(shared + kChunk * k.kPitch);  // in the place of q
  float* const inverse = turned + kChunk * kPitch;
  static_assert(kChunk * kPitch * 4 == kChunk * RowsOfDim::kPitch);
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
      const float upto = __expf(sums[at]);
      factors[at] = betas[at] * upto;
      values[at] = at < chunk.tokens
                       ? betas[at] * __ldcg(c.powers + (chunk.first + at) * a.d.value_heads + h)
                       : 0;
      image.writes.left[at] = __expf(sums[kChunk - 1] - sums[at]);
      image.reads.by[at] = rsqrtf(static_cast<float>(kDim)) * upto;
      if (at == kChunk - 1) image.writes.kept = upto;
    }
  }
  cuda::async_copy_wait<0>();
  __syncthreads();
  if (h % a.d.ratio == 0)
    store_image(&c.keys[int64_t{index} * (a.d.value_heads / a.d.ratio) + head], shared,
                sizeof(KeyImage));

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
  __syncthreads();  // q has been read
  const float scale = rsqrtf(static_cast<float>(kDim));
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n / 2 > warp) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * warp + g + 8 * half, j = 8 * n + 2 * p;
      const float d0 = j <= i ? __expf(sums[i] - sums[j]) : 0;
      const float d1 = j + 1 <= i ? __expf(sums[i] - sums[j + 1]) : 0;
      *reinterpret_cast<uint32_t*>(image.reads.p + i * RowsOfChunk::kPitch + 2 * j) =
          cuda::pack_f16(scale * d0 * qk[n][2 * half], scale * d1 * qk[n][2 * half + 1]);
      turned[j * kPitch + i] = betas[i] * d0 * kk[n][2 * half];
      turned[(j + 1) * kPitch + i] = betas[i] * d1 * kk[n][2 * half + 1];
    }
  }
  // v is on its way while the inverse is made, and then comes to where M was.
  constexpr int kPieces = kChunk * kDim / 8 / kWithinThreads;
  uint4 of_v[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int at = kWithinThreads * i + threadIdx.x, row = at / q.kPieces;
    of_v[i] = row < chunk.tokens
                  ? __ldcg(reinterpret_cast<const uint4*>(rows + row * a.d.channels +
                                                          2 * a.d.key_width + h * kDim) +
                           at % q.kPieces)
                  : uint4{};
  }
  __syncthreads();
  invert(turned, inverse);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int at = kWithinThreads * i + threadIdx.x;
    *reinterpret_cast<uint4*>(shared + kChunk * k.kPitch + at / q.kPieces * q.kPitch +
                              at % q.kPieces * 16) = of_v[i];
  }
  __syncthreads();
#pragma unroll 1
  for (int i = 0; i < 2; ++i) make_u(image, q, inverse, values, 32 * warp + 16 * i);
  __syncthreads();  // v has been read: W comes there
  make_w(q, k, inverse, factors, 32 * warp);
  __syncthreads();
  store_image(&image.writes.w, shared + kChunk * k.kPitch, sizeof(image.writes.w));
}

static __global__ void __launch_bounds__(kWithinThreads, 4)
    within_chunk(const __grid_constant__ ChunkParams c, Piece piece) {
  wait_of_piece<false>(piece);
  cuda::griddep_launch_dependents();
  make_chunk(c, piece.first + static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  wait_of_piece<true>(piece);
}

}  // namespace nibble::ops::gpu::delta
