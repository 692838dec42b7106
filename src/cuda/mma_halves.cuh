// MXFP4 weights times bf16 activations in f16, for more tokens than the columns of mma_digits.cuh
// hold cheaply: eight in one product of a block of 32 k, whose float32 sum is then scaled.
//
// An E2M1 code's bits shifted into place are the f16 of w 2^-14, subnormals included. A row of
// activations gets one power-of-two scale that puts its largest element into [2^14, 2^15): f16 then
// holds a bf16 exactly down to 2^-28 of the largest, and what is smaller to 2^-39 of it.
//
// Order of sums: tensor cores add the 32 terms of a block in an order of their own, truncating;
// blocks in sequence.
//
// Lane l: g = l / 4, p = l % 4, as in mma's fragments. A weight's bytes: Layout::kTiles16x64.
#pragma once

#include "cuda/mma_digits.cuh"

namespace nibble::cuda {

// A block of 32 k of one token: lane p's 16 bytes at 16p: k = 8j + 2p and 8j + 2p + 1 for j = 3, 1,
// 2, 0, the order in which CodeHalves makes the codes' pairs.
inline constexpr int kHalvesBytes = 64;

// By one warp: row of 32 `blocks` activations from load(k), 8 bf16 each, to shared memory, blocks
// `stride` apart. Returns what products with it are to be multiplied by; NaN where an element is
// not finite.
template <typename Load>
__device__ __forceinline__ float store_halves(const Load& load, int blocks, uint32_t to,
                                              uint32_t stride) {
  const int lane = threadIdx.x % 32;
  uint32_t most = 0;
#pragma unroll 2
  for (int i = lane; i < blocks * 4; i += 32) {
    const uint4 x = load(i * 8);
    for (const uint32_t pair : {x.x, x.y, x.z, x.w})
      most = max(most, max(pair >> 16 & 0x7fff, pair & 0x7fff));
  }
  most = __reduce_max_sync(0xffffffff, most);
  // Below 2^-111 elements lose bits, so that scales stay normal numbers.
  const uint32_t exponent = max(most >> 7, 16u);
  const float inverse = __uint_as_float((268 - min(exponent, 254u)) << 23);
#pragma unroll 2
  for (int i = lane; i < blocks * 4; i += 32) {
    const uint4 x = load(i * 8);
    const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
    const uint32_t at = to + i / 4 * stride + (0x0008040c >> i % 4 * 8 & 0xff);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      uint32_t halves;
      asm("cvt.rn.f16x2.f32 %0, %1, %2;"
          : "=r"(halves)
          : "f"(__uint_as_float(pairs[p] & 0xffff0000u) * inverse),
            "f"(__uint_as_float(pairs[p] << 16) * inverse));
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(at + p * 16), "r"(halves) : "memory");
    }
  }
  // 2^14 for the codes times the row's own scale.
  return exponent == 255 ? __uint_as_float(0x7fc00000) : 16384.f / inverse;
}

// The four pairs of codes of a word: nibbles j and j + 4.
struct CodeHalves {
  uint32_t pair[4];  // j = 3, 1, 2, 0
  __device__ __forceinline__ explicit CodeHalves(uint32_t codes) {
    // Bytes of sign, exponent and mantissa: the high halves of f16.
    const uint32_t odd = (codes & 0x80808080u) | (codes >> 3 & 0x0e0e0e0eu);
    const uint32_t even = (codes << 4 & 0x80808080u) | (codes << 1 & 0x0e0e0e0eu);
    pair[0] = odd & 0xff00ff00u;
    pair[1] = byte_permute(odd, 0, 0x2404);
    pair[2] = even & 0xff00ff00u;
    pair[3] = byte_permute(even, 0, 0x2404);
  }
};

// d [rows g and g + 8][columns 2p and 2p + 1] of a block.
__device__ __forceinline__ void halves_product(float (&d)[4], const CodeHalves& row_g,
                                               const CodeHalves& row_g8, const uint4& x) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(row_g.pair[0]), "r"(row_g8.pair[0]), "r"(row_g.pair[1]), "r"(row_g8.pair[1]), "r"(x.x),
        "r"(x.y), "f"(0.f));
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(row_g.pair[2]), "r"(row_g8.pair[2]), "r"(row_g.pair[3]), "r"(row_g8.pair[3]), "r"(x.z),
        "r"(x.w));
}

}  // namespace nibble::cuda
