// What the general rows know of a weight format: how 16 bytes of codes become bf16. A format is one
// Decode: how many elements 16 bytes are, what of the scales goes with them, and decode().
//
// A lane holds a Piece: the codes of kElems neighbouring elements of a row as they lie in kRows,
// and up to four bytes of scales. decode() leaves bf16 pairs, the lower k in the low half. What a
// bf16 cannot hold (its 8 significant bits) a format gives as a factor of its sums, or not at all:
//   bf16    as it is
//   mxfp4   exact: 2 bits and a power of two
//   mxfp8   exact but for scales below 2^-124, whose least codes are rounded
#pragma once

#include "cuda/bf16.cuh"
#include "cuda/fp8.cuh"
#include "formats/format.h"

namespace nibble::ops::gpu {

struct Piece {
  uint4 codes;
  uint32_t scales;
};

template <Format kFormat>
struct Decode;

// a * b in bf16, both halves; exact where the product fits.
__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// 2^(scale - 127) in both halves; 255 is NaN.
__device__ __forceinline__ uint32_t bf16_of_e8m0(uint32_t scale) {
  const uint32_t bits = scale == 255 ? 0x7fc0u : scale == 0 ? 0x0040u : scale << 7;
  return bits * 0x10001u;
}

template <>
struct Decode<Format::kBF16> {
  static constexpr int kElems = 8, kScaleBytes = 0, kElemsOfScale = 8;

  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2]) {
    pairs[0] = piece.codes.x, pairs[1] = piece.codes.y;
    pairs[2] = piece.codes.z, pairs[3] = piece.codes.w;
  }
};

template <>
struct Decode<Format::kMxfp4> {
  static constexpr int kElems = 32, kScaleBytes = 1, kElemsOfScale = 32;

  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2]) {
    const uint32_t words[4] = {piece.codes.x, piece.codes.y, piece.codes.z, piece.codes.w};
    const uint32_t scale = bf16_of_e8m0(piece.scales);
#pragma unroll
    for (int i = 0; i < kElems / 2; ++i) {
      const uint32_t byte = words[i / 4] >> 8 * (i % 4) & 0xff, apart = byte | byte << 12;
      // E2M1's exponent and mantissa at the low end of bf16's: 2^-126 of the value.
      const uint32_t small = (apart & 0x00070007u) << 6 | (apart & 0x00080008u) << 12;
      pairs[i] = multiply_bf16(multiply_bf16(small, 0x7e807e80u), scale);
    }
  }
};

template <>
struct Decode<Format::kMxfp8> {
  static constexpr int kElems = 16, kScaleBytes = 1, kElemsOfScale = 32;

  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2]) {
    const uint32_t words[4] = {piece.codes.x, piece.codes.y, piece.codes.z, piece.codes.w};
    const uint32_t scale = bf16_of_e8m0(piece.scales);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[2 * i] = multiply_bf16(cuda::bf16_of_e4m3_lo(words[i]), scale);
      pairs[2 * i + 1] = multiply_bf16(cuda::bf16_of_e4m3_hi(words[i]), scale);
    }
  }
};

// The n (8 at most) bf16 from `at` on, zeros behind them; `is_wide`: all pieces are whole and
// aligned to 16 bytes. Plain loads: weights, or what a kernel before wrote.
__device__ __forceinline__ uint4 load_bf16(const uint16_t* at, int n, bool is_wide) {
  if (n <= 0) return {};
  if (is_wide) return cuda::load16(at);
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint16_t value = 0;
    if (i < n) asm volatile("ld.global.u16 %0, [%1];" : "=h"(value) : "l"(at + i));
    words[i / 2] |= static_cast<uint32_t>(value) << 16 * (i % 2);
  }
  return {words[0], words[1], words[2], words[3]};
}

// The piece of a row that begins at element k; zeros beyond the row's `cols`. MX formats have whole
// blocks of 32 a row, so that their pieces are whole and aligned.
template <Format kFormat>
__device__ __forceinline__ Piece load_piece(const uint8_t* codes, const uint8_t* scales, int k,
                                            int cols, bool is_wide) {
  using D = Decode<kFormat>;
  Piece piece{};
  if constexpr (kFormat == Format::kBF16) {
    piece.codes = load_bf16(reinterpret_cast<const uint16_t*>(codes) + k, cols - k, is_wide);
  } else if (k < cols) {
    piece.codes = cuda::load16(codes + int64_t{k} * 16 / D::kElems);
    if constexpr (D::kScaleBytes == 1) piece.scales = scales[k / D::kElemsOfScale];
  }
  return piece;
}

}  // namespace nibble::ops::gpu
