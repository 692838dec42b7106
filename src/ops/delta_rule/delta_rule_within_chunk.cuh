// The second kernel of delta_rule_chunks_cuda.cu: U, W and P of all chunks at once.
#pragma once

#include "ops/delta_rule/delta_rule_chunks.cuh"

namespace nibble::ops::gpu::delta {

// Within a chunk: U in the place of v, W, P, G. A block a chunk and value head, grid (chunks, HV);
// a warp has 16 rows of k k^T and q k^T, then 32 columns of U and W.
inline constexpr int kWithinThreads = 128, kPitch = 68;  // floats of a row of I + M's inverse
inline constexpr int kWithinBytes = 2 * kChunk * HalfRows<kDim>::kPitch + kChunk * kPitch * 4;

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

// Column c of (I + M)^-1, by its own thread: forward substitution, 16 rows at a time. turned[j][i]:
// M_ij, i > j.
__device__ __forceinline__ void invert_column(const float* turned, float* inverse, int c) {
#pragma unroll 1
  for (int begin = 0; begin < kChunk; begin += 16) {
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = begin + i == c ? 1 : 0;
#pragma unroll 4
    for (int j = c / 32 * 32; j < begin; ++j) {
      const float y = inverse[j * kPitch + c];
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        const float4 m = *reinterpret_cast<const float4*>(turned + j * kPitch + begin + i);
        x[i] = fmaf(-m.x, y, x[i]), x[i + 1] = fmaf(-m.y, y, x[i + 1]);
        x[i + 2] = fmaf(-m.z, y, x[i + 2]), x[i + 3] = fmaf(-m.w, y, x[i + 3]);
      }
    }
#pragma unroll
    for (int j = 0; j < 15; ++j)
#pragma unroll
      for (int i = j + 1; i < 16; ++i)
        x[i] = fmaf(-turned[(begin + j) * kPitch + begin + i], x[j], x[i]);
#pragma unroll
    for (int i = 0; i < 16; ++i) inverse[(begin + i) * kPitch + c] = x[i];
  }
}

// U's columns `column` .. + 31, by a warp, in the place of v.
__device__ __forceinline__ void make_u(float* v, int64_t stride, int tokens, const float* inverse,
                                       const float* betas, int column) {
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  float b[8][4][2];
#pragma unroll
  for (int s = 0; s < 8; ++s)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 8 * s + p + 4 * i;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float x = row < tokens ? __ldcg(v + row * stride + column + 8 * n + g) : 0;
        b[s][n][i] = cuda::to_tf32(x * betas[row]);
      }
    }
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    float d[4][4] = {};
#pragma unroll
    for (int s = 0; s < 2 * m + 2; ++s) {
      const float* const at = inverse + (16 * m + g) * kPitch + 8 * s + p;
      const float a0 = cuda::to_tf32(at[0]), a1 = cuda::to_tf32(at[8 * kPitch]),
                  a2 = cuda::to_tf32(at[4]), a3 = cuda::to_tf32(at[8 * kPitch + 4]);
#pragma unroll
      for (int n = 0; n < 4; ++n) cuda::mma_tf32(d[n], a0, a1, a2, a3, b[s][n][0], b[s][n][1]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 16 * m + g + 8 * i;
      if (row >= tokens) continue;
#pragma unroll
      for (int n = 0; n < 4; ++n)
        *reinterpret_cast<float2*>(v + row * stride + column + 8 * n + 2 * p) = {d[n][2 * i],
                                                                                 d[n][2 * i + 1]};
    }
  }
}

// W's columns `column` .. + 31, by a warp, to shared memory.
__device__ __forceinline__ void make_w(const HalfRows<kDim>& to, const HalfRows<kDim>& k,
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

static __global__ void __launch_bounds__(kWithinThreads)
    within_chunk(const __grid_constant__ ChunkParams c) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ float sums[kChunk], betas[kChunk], factors[kChunk];
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const Params& a = c.a;
  const auto chunk = Chunks{a.spans, a.num_spans}.find(static_cast<int>(blockIdx.x));
  if (chunk.tokens == 0) return;
  const int h = static_cast<int>(blockIdx.y), head = h / a.d.ratio;
  const int64_t index = int64_t{blockIdx.x} * a.d.value_heads + h;
  float* const rows = a.mixed + chunk.first * a.d.channels;
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const HalfRows<kDim> k{base}, q{base + kChunk * HalfRows<kDim>::kPitch};
  auto* const turned = reinterpret_cast<float*>(shared + kChunk * k.kPitch);  // in the place of q
  float* const inverse = turned + kChunk * kPitch;
  static_assert(kChunk * kPitch * 4 == kChunk * HalfRows<kDim>::kPitch);
  const int64_t stride = 2 * int64_t{a.d.channels};  // of rows, in f16
  k.bring<kWithinThreads, kChunk>(reinterpret_cast<uint16_t*>(rows + a.d.key_width + head * kDim),
                                  stride, chunk.tokens);
  q.bring<kWithinThreads, kChunk>(reinterpret_cast<uint16_t*>(rows + head * kDim), stride,
                                  chunk.tokens);
  cuda::async_copy_commit();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  if (warp == 0) {
    sum_decays(sums, betas,
               reinterpret_cast<const float2*>(a.decayed) + chunk.first * a.d.value_heads + h,
               a.d.value_heads, chunk.tokens);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = 2 * lane + i;
      factors[at] = betas[at] * expf(sums[at]);
      c.sums[index * kChunk + at] = sums[at];
    }
  }
  cuda::async_copy_wait<0>();
  __syncthreads();

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
  uint16_t* const out = c.p + index * kChunk * kChunk;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n / 2 > warp) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * warp + g + 8 * half, j = 8 * n + 2 * p;
      const float d0 = j <= i ? expf(sums[i] - sums[j]) : 0;
      const float d1 = j + 1 <= i ? expf(sums[i] - sums[j + 1]) : 0;
      *reinterpret_cast<uint32_t*>(out + i * kChunk + j) =
          cuda::pack_f16(scale * d0 * qk[n][2 * half], scale * d1 * qk[n][2 * half + 1]);
      turned[j * kPitch + i] = betas[i] * d0 * kk[n][2 * half];
      turned[(j + 1) * kPitch + i] = betas[i] * d1 * kk[n][2 * half + 1];
    }
  }
  __syncthreads();
  if (threadIdx.x < kChunk) invert_column(turned, inverse, static_cast<int>(threadIdx.x));
  __syncthreads();
  make_u(rows + 2 * a.d.key_width + h * kDim, a.d.channels, chunk.tokens, inverse, betas,
         32 * warp);
  make_w(q, k, inverse, factors, 32 * warp);
  __syncthreads();
  for (int i = threadIdx.x; i < kChunk * q.kPieces; i += kWithinThreads)
    reinterpret_cast<uint4*>(c.w + index * kChunk * kDim)[i] = *reinterpret_cast<const uint4*>(
        shared + kChunk * k.kPitch + i / q.kPieces * q.kPitch + i % q.kPieces * 16);
}

}  // namespace nibble::ops::gpu::delta
