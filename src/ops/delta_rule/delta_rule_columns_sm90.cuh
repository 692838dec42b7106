// Columns of a state times what a chunk brings, by wgmma, whose operands in shared memory are read
// once for all four warps of columns (sm_90a only).
#pragma once

#include "ops/attention/attention_values_sm90.cuh"

namespace nibble::ops::gpu::delta {

// d [64][N] (+)= a [64][16] b, in f16. b: [N][K]; or, turned, [K][N].
#define NIBBLE_MULTIPLY_F16(name, n, regs, outs, a0, a1, a2, a3, b, acc, turned)                   \
  __device__ __forceinline__ void name(float(&d)[n / 2], const uint32_t(&a)[4], uint64_t bd,       \
                                       int is_added) {                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " acc                                           \
                 ", 0;\n"                                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" regs "}, {" a0 ", " a1 \
                 ", " a2 ", " a3 "}, " b ", p, 1, 1, " turned ";\n}"                               \
                 : outs                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(bd), "r"(is_added));            \
  }
NIBBLE_MULTIPLY_F16(multiply_w, 64, NIBBLE_R32, NIBBLE_O32, "%32", "%33", "%34", "%35", "%36",
                    "%37", "0")
NIBBLE_MULTIPLY_F16(multiply_keys, 128, NIBBLE_R64, NIBBLE_O64, "%64", "%65", "%66", "%67", "%68",
                    "%69", "1")
#undef NIBBLE_MULTIPLY_F16

// The same of d [64][64], a in shared memory, both by their descriptors.
__device__ __forceinline__ void multiply_state(float (&d)[32], uint64_t ad, uint64_t bd,
                                               int is_added) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NIBBLE_R32
      "}, %32, %33, p, 1, 1, 0, 0;\n}"
      : NIBBLE_O32
      : "l"(ad), "l"(bd), "r"(is_added));
}

// v [64][64] = a W^T, W's panels at `w`. Begins only: a and v are busy until products_end().
__device__ __forceinline__ void begin_w(float (&v)[32], const uint32_t (&a)[8][4], uint32_t w) {
  cuda::sm90::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k)
    multiply_w(v, a[k], cuda::sm90::swizzled_128(w + k / 4 * kPanelBytes) + 2 * (k % 4), k > 0);
  cuda::sm90::wgmma_commit();
}
// s [64][128] += a K, keys' panels at `keys`.
__device__ __forceinline__ void begin_keys(float (&s)[64], const uint32_t (&a)[4][4],
                                           uint32_t keys) {
  cuda::sm90::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k)
    multiply_keys(s, a[k], swizzled_columns(keys + k * 16 * 128, kPanelBytes), 1);
  cuda::sm90::wgmma_commit();
}
// o [64][64] = Q S, of panels of q and of columns of the state.
__device__ __forceinline__ void begin_outputs(float (&o)[32], uint32_t q, uint32_t state) {
  using cuda::sm90::swizzled_128;
  cuda::sm90::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k)
    multiply_state(o, swizzled_128(q + k / 4 * kPanelBytes) + 2 * (k % 4),
                   swizzled_128(state + k / 4 * kPanelBytes) + 2 * (k % 4), k > 0);
  cuda::sm90::wgmma_commit();
}
// 16 columns of the state as a of wgmma, k step `k`, to their rows of panels at `state`.
__device__ __forceinline__ void store_columns(uint32_t state, int first, int k,
                                              const uint32_t (&a)[4]) {
  const int lane = threadIdx.x % 32;
  const uint32_t to = state + place_of_piece(first + lane % 16, 2 * k + lane / 16);
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
               : "memory");
}
// Until then the compiler is to leave what they read, and behind it to take their sums.
template <int kSums>
__device__ __forceinline__ void products_end(float (&d)[kSums]) {
  cuda::sm90::wgmma_wait<0>();
#pragma unroll
  for (float& sum : d) asm volatile("" : "+f"(sum));
}
template <int kSteps, int kSums>
__device__ __forceinline__ void products_end(const uint32_t (&a)[kSteps][4], float (&d)[kSums]) {
  products_end(d);
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
    asm volatile("" ::"r"(a[k][0]), "r"(a[k][1]), "r"(a[k][2]), "r"(a[k][3]));
}

}  // namespace nibble::ops::gpu::delta
