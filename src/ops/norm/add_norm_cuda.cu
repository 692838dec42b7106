// add_norm (see add_norm.h): one block a token.
// Bytes: 14 H a token and 2 H of weights: at H = 2,880 40 KB a token, 9 ns of an H200's 4.5 TB/s;
// at T <= 128 one launch's latency.
#include "cuda/fp8.cuh"
#include "cuda/launch.cuh"
#include "ops/norm/add_norm.cuh"
#include "ops/norm/add_norm.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kWarps = 12;  // 360 groups of 8 columns at H = 2,880
constexpr int kThreads = kWarps * 32;
constexpr int kGroups = 3;  // of 8 columns, a thread: up to 9,216 columns

// The largest magnitude among this thread's values of h and the others' of its block.
template <int kMine>
__device__ __forceinline__ float largest_of(const uint4 (&h)[kMine], float* shared) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i)
    for (const uint32_t w : {h[i].x, h[i].y, h[i].z, h[i].w})
      most = fmaxf(most, fmaxf(fabsf(cuda::bf16_lo(w)), fabsf(cuda::bf16_hi(w))));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, shared[w]);
  return most;
}

// Eight values, of which four lanes have 32, as two words in E4M3 order (gemm_fp8_sm90.cuh): lane p
// of the four gets bytes 4 p.. of the even columns in x, of the odd ones in y.
__device__ __forceinline__ uint2 in_e4m3_order(const uint4& h, float inverse) {
  const uint32_t words[4] = {h.x, h.y, h.z, h.w};
  uint32_t even = 0, odd = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t a = words[2 * i], b = words[2 * i + 1];
    even |= cuda::e4m3_pair(cuda::bf16_lo(a) * inverse, cuda::bf16_lo(b) * inverse) << 16 * i;
    odd |= cuda::e4m3_pair(cuda::bf16_hi(a) * inverse, cuda::bf16_hi(b) * inverse) << 16 * i;
  }
  const bool second = threadIdx.x % 2 != 0, third = threadIdx.x / 2 % 2 != 0;
  const auto turn = [&](uint32_t mine) {  // byte p of lane i becomes byte i of lane p
    const uint32_t next = __shfl_xor_sync(~0u, mine, 1);
    mine = __byte_perm(mine, next, second ? 0x3715 : 0x6240);
    const uint32_t other = __shfl_xor_sync(~0u, mine, 2);
    return __byte_perm(mine, other, third ? 0x3276 : 0x5410);
  };
  return {turn(even), turn(odd)};
}

// h . gate of the block's token.
template <int kMine>
__device__ __forceinline__ float gate_logit(const uint4 (&h)[kMine], const uint4 (&gate)[kMine],
                                            float* shared) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i) sum = dot_8(h[i], gate[i], sum);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += shared[w];
  return sum;
}

template <int kMine, bool kE4m3>  // groups a thread
__global__ void __launch_bounds__(kThreads)
    add_norm_rows(const __grid_constant__ AddNorm a, const GateLogits gated) {
  __shared__ float squares[kWarps], most[kWarps], gates[kWarps];
  cuda::griddep_launch_dependents();
  const auto hidden = static_cast<int>(a.hidden);
  const int64_t row = blockIdx.x;
  uint4 weight[kMine] = {}, gate[kMine] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int column = 8 * (i * kThreads + threadIdx.x);
    if (column >= hidden) continue;
    weight[i] = cuda::load16(a.norm.weight + column);
    if (gated.gate != nullptr) gate[i] = cuda::load16(gated.gate + column);
  }
  const int64_t from = a.rows == nullptr ? row : a.rows[row];
  cuda::griddep_wait();
  float y[kMine][8] = {}, sum = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int column = 8 * (i * kThreads + threadIdx.x);
    if (column < hidden) add_8(y[i], a.x, a.d, from * hidden + column);
    sum = sum_of_squares(y[i], sum);
  }
  const float inv = inverse_rms<kWarps>(sum, squares, hidden, a.norm.eps);
  uint4 h[kMine] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int column = 8 * (i * kThreads + threadIdx.x);
    if (column >= hidden) continue;
    if (a.rows == nullptr) store_8(a.y, row * hidden + column, y[i]);
    h[i] = norm_8(y[i], inv, weight[i], a.norm.offset);
    *reinterpret_cast<uint4*>(a.h + row * hidden + column) = h[i];
  }
  if (gated.gate != nullptr) {
    const float logit = gate_logit(h, gate, gates);
    if (threadIdx.x == 0) gated.logits[row * gated.stride] = logit;
  }
  if constexpr (kE4m3) {
    const float largest = largest_of(h, most);
    if (threadIdx.x == 0) a.e4m3.scales[row] = largest / kE4m3Largest;
    const float inverse = largest > 0 ? kE4m3Largest / largest : 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int column = 8 * (i * kThreads + threadIdx.x);
      const uint2 words = in_e4m3_order(h[i], inverse);
      if (column >= hidden) continue;
      uint8_t* to = a.e4m3.codes + row * hidden + column / 32 * 32 + threadIdx.x % 4 * 4;
      *reinterpret_cast<uint32_t*>(to) = words.x;
      *reinterpret_cast<uint32_t*>(to + 16) = words.y;
    }
  }
}

// Any H: a thread has every kThreads-th column, and reads it again for h.
__global__ void __launch_bounds__(kThreads) add_norm_columns(const __grid_constant__ AddNorm a) {
  __shared__ float squares[kWarps];
  const auto hidden = static_cast<int>(a.hidden);
  const int64_t row = blockIdx.x;
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t from = (a.rows == nullptr ? row : a.rows[row]) * hidden;
  const auto sum_at = [&](int column) {
    return __ldcg(a.x + from + column) + __ldcg(a.d + from + column);
  };
  float sum = 0;
#pragma unroll 4
  for (int column = threadIdx.x; column < hidden; column += kThreads) {
    const float y = sum_at(column);
    sum = fmaf(y, y, sum);
    if (a.rows == nullptr) a.y[row * hidden + column] = y;
  }
  const float inv = inverse_rms<kWarps>(sum, squares, hidden, a.norm.eps);
#pragma unroll 4
  for (int column = threadIdx.x; column < hidden; column += kThreads)
    a.h[row * hidden + column] = cuda::bf16_bits(
        sum_at(column) * inv * (a.norm.offset + cuda::bf16_value(a.norm.weight[column])));
}

}  // namespace

void add_norm_any(Ctx& cx, const AddNorm& a) {
  CHECK(a.e4m3.codes == nullptr);
  cuda::launch(cx.stream, add_norm_columns,
               {.grid = dim3(static_cast<unsigned>(a.tokens)), .block = dim3(kThreads)}, a);
}

void add_norm(Ctx& cx, const AddNorm& a) { add_norm(cx, a, {}); }

void add_norm(Ctx& cx, const AddNorm& a, const GateLogits& gate) {
  CHECK(a.hidden % 8 == 0 && a.hidden <= 8 * kThreads * kGroups);
  CHECK(a.e4m3.codes == nullptr || a.hidden % 32 == 0);
  const bool is_narrow = a.hidden <= 8 * kThreads, e4m3 = a.e4m3.codes != nullptr;
  const auto kernel = is_narrow
                          ? (e4m3 ? add_norm_rows<1, true> : add_norm_rows<1, false>)
                          : (e4m3 ? add_norm_rows<kGroups, true> : add_norm_rows<kGroups, false>);
  cuda::launch(cx.stream, kernel,
               {.grid = dim3(a.tokens), .block = dim3(kThreads), .reads_inputs = a.rows != nullptr},
               a, gate);
}

}  // namespace nibble::ops::gpu
