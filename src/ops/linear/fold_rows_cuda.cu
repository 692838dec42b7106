// fold_rows (see fold_rows.h): a block a row, a thread 8 columns. Bytes: 4 K a row.
#include <cuda_fp16.h>

#include "cuda/bf16.cuh"
#include "cuda/fp8.cuh"
#include "cuda/launch.cuh"
#include "cuda/mma_digits.cuh"
#include "ops/linear/fold_rows.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kWarps = 16, kThreads = kWarps * 32;

__global__ void __launch_bounds__(kThreads)
    fold_row(const FoldRows out, const uint16_t* x, int cols) {
  __shared__ uint32_t largest[kWarps];
  cuda::griddep_wait();  // first: see fold_rows.h
  cuda::griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x % 32, i = threadIdx.x, warps = blockDim.x / 32;
  uint4 v{};
  if (8 * i < cols) v = cuda::load16(x + row * cols + 8 * i);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  uint32_t most = 0;  // magnitudes of bf16 order as integers do
  for (const uint32_t pair : words) most = max(most, max(pair >> 16 & 0x7fff, pair & 0x7fff));
  most = __reduce_max_sync(~0u, most);
  if (lane == 0) largest[threadIdx.x / 32] = most;
  __syncthreads();
  most = __reduce_max_sync(~0u, lane < warps ? largest[lane] : 0);
  // Below 2^-111 elements lose bits, so that scales stay normal numbers.
  const uint32_t exponent = max(most >> 7, 16u);
  const float inverse = __uint_as_float((261 - min(exponent, 254u)) << 23);
  if (i == 0) out.factors[row] = exponent == 255 ? __uint_as_float(0x7fc00000) : 0x1p-12f / inverse;
    // Even and odd columns; of four lanes with 32 of them, lane p is to have bytes 4 p .. of each.
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    uint32_t high = 0, low = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto element = [&](int w) {
        return __uint_as_float(odd == 0 ? words[w] << 16 : words[w] & 0xffff0000u) * inverse;
      };
      const float a = element(2 * half), b = element(2 * half + 1);
      const uint32_t pair = cuda::e4m3_pair(a, b);
      const float2 f = cuda::values_of_f16(cuda::f16_of_e4m3(static_cast<uint16_t>(pair)));
      high |= pair << 16 * half;
      low |= cuda::e4m3_pair((a - f.x) * 16, (b - f.y) * 16) << 16 * half;
    }
    high = cuda::transpose_quad(high);
    low = cuda::transpose_quad(low);
    if (8 * i >= cols) continue;
    uint8_t* const to = out.codes + row * 2 * cols + (i / 4 * 2 + odd) * 32 + lane % 4 * 4;
    *reinterpret_cast<uint32_t*>(to) = high;
    *reinterpret_cast<uint32_t*>(to + 16) = low;
  }
}

}  // namespace

FoldRows fold_rows(Ctx& cx, Scratch& scratch, const uint16_t* x, int64_t rows, int64_t cols) {
  CHECK(cols % 64 == 0 && cols <= 8 * kThreads);
  const FoldRows out = take_fold_rows(scratch, rows, cols);
  const auto threads = static_cast<unsigned>((cols / 8 + 31) / 32 * 32);
  cuda::launch(cx.stream, fold_row,
               {.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(threads)}, out, x,
               static_cast<int>(cols));
  return out;
}

}  // namespace nibble::ops::gpu
