// What the general rows know of a weight format: how 16 bytes of codes become bf16. A format is one
// Decode: how many elements a piece of codes is, what of the scales goes with it, and decode().
//
// A lane holds a Piece: the codes of kElems neighbouring elements of a row as they lie in kRows,
// and up to four bytes of scales. decode() leaves bf16 pairs, the lower k in the low half. What a
// bf16 cannot hold (its 8 significant bits) a format gives as further parts, whose products are
// added, or as a factor of the sums over 32 k; a row's float32 multiplies its whole sum.
//   bf16           as it is
//   mxfp4          exact: 2 bits and a power of two
//   mxfp8          exact but for scales below 2^-124, whose least codes are rounded
//   nvfp4          exact: 2 bits times 4, then the row's factor
//   fp8            exact: 4 bits, then the row's factor
//   fp8_block      exact: 4 bits, then the block's factor
//   int4_g32, 128  exact: whole numbers up to 15, then the group's factor
//   f16            exact: 8 bits, and the other 3
//   f32            exact from 2^-110 on: 8 bits, the next 8, and the last 8
#pragma once

#include "base/check.h"
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

// What most formats are: one part, no factors of 32 k.
struct OnePart {
  static constexpr int kParts = 1;
  static constexpr bool kHasFactors = false;
};
struct WithFactors {
  static constexpr int kParts = 1;
  static constexpr bool kHasFactors = true;
};

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

// E2M1 of two neighbours, nibbles of a byte.
__device__ __forceinline__ uint32_t bf16_of_e2m1(uint32_t byte) {
  const uint32_t apart = byte | byte << 12;
  // E2M1's exponent and mantissa at the low end of bf16's: 2^-126 of the value.
  const uint32_t small = (apart & 0x00070007u) << 6 | (apart & 0x00080008u) << 12;
  return multiply_bf16(small, 0x7e807e80u);
}

__device__ __forceinline__ uint32_t byte_of(const uint4& codes, int i) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  return words[i / 4] >> 8 * (i % 4) & 0xff;
}

// 16 codes of E4M3.
__device__ __forceinline__ void decode_e4m3(const uint4& codes, uint32_t (&pairs)[8]) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = cuda::bf16_of_e4m3_lo(words[i]);
    pairs[2 * i + 1] = cuda::bf16_of_e4m3_hi(words[i]);
  }
}

template <>
struct Decode<Format::kBF16> : OnePart {
  static constexpr int kElems = 8, kScaleBytes = 0, kElemsOfScale = 8;

  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2],
                                                int) {
    pairs[0] = piece.codes.x, pairs[1] = piece.codes.y;
    pairs[2] = piece.codes.z, pairs[3] = piece.codes.w;
  }
};

template <>
struct Decode<Format::kF16> {
  static constexpr int kElems = 8, kScaleBytes = 0, kElemsOfScale = 8;
  static constexpr int kParts = 2;
  static constexpr bool kHasFactors = false;

  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2],
                                                int part) {
    const uint32_t words[4] = {piece.codes.x, piece.codes.y, piece.codes.z, piece.codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 v = cuda::values_of_f16(words[i]);
      pairs[i] = cuda::pack_bf16(v.x, v.y);
      if (part == 1)
        pairs[i] = cuda::pack_bf16(v.x - cuda::bf16_lo(pairs[i]), v.y - cuda::bf16_hi(pairs[i]));
    }
  }
};

template <>
struct Decode<Format::kF32> {
  static constexpr int kElems = 4, kScaleBytes = 0, kElemsOfScale = 4;
  static constexpr int kParts = 3;
  static constexpr bool kHasFactors = false;

  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2],
                                                int part) {
    constexpr uint32_t kUpper = 0xffff0000;
    const uint32_t words[4] = {piece.codes.x, piece.codes.y, piece.codes.z, piece.codes.w};
    uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float rest = __uint_as_float(words[i]);
#pragma unroll
      for (int p = 0; p < part; ++p) rest -= __uint_as_float(__float_as_uint(rest) & kUpper);
      bits[i] = __float_as_uint(rest);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) pairs[i] = bits[2 * i] >> 16 | (bits[2 * i + 1] & kUpper);
  }
};

template <>
struct Decode<Format::kMxfp4> : OnePart {
  static constexpr int kElems = 32, kScaleBytes = 1, kElemsOfScale = 32;

  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2],
                                                int) {
    const uint32_t scale = bf16_of_e8m0(piece.scales);
#pragma unroll
    for (int i = 0; i < kElems / 2; ++i)
      pairs[i] = multiply_bf16(bf16_of_e2m1(byte_of(piece.codes, i)), scale);
  }
};

template <>
struct Decode<Format::kMxfp8> : OnePart {
  static constexpr int kElems = 16, kScaleBytes = 1, kElemsOfScale = 32;

  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2],
                                                int) {
    const uint32_t scale = bf16_of_e8m0(piece.scales);
    decode_e4m3(piece.codes, pairs);
#pragma unroll
    for (int i = 0; i < kElems / 2; ++i) pairs[i] = multiply_bf16(pairs[i], scale);
  }
};

// Pieces of 8 bytes: a row may be an odd number of blocks of 16.
template <>
struct Decode<Format::kNvfp4> : OnePart {
  static constexpr int kElems = 16, kScaleBytes = 1, kElemsOfScale = 16;

  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2],
                                                int) {
    const uint32_t scale = cuda::bf16_of_e4m3_lo(piece.scales * 0x101u);
#pragma unroll
    for (int i = 0; i < kElems / 2; ++i)
      pairs[i] = multiply_bf16(bf16_of_e2m1(byte_of(piece.codes, i)), scale);
  }
};

template <>
struct Decode<Format::kFp8Row> : OnePart {
  static constexpr int kElems = 16, kScaleBytes = 0, kElemsOfScale = 16;

  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2],
                                                int) {
    decode_e4m3(piece.codes, pairs);
  }
};

template <>
struct Decode<Format::kFp8Block> : WithFactors {
  static constexpr int kElems = 16, kScaleBytes = 4, kElemsOfScale = 128;

  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2],
                                                int) {
    decode_e4m3(piece.codes, pairs);
  }
  static __device__ __forceinline__ float factor(const Piece& piece) {
    return __uint_as_float(piece.scales);
  }
};

template <>
struct Decode<Format::kInt4G128> : WithFactors {
  static constexpr int kElems = 32, kScaleBytes = 4, kElemsOfScale = 128;

  // Less the group's zero point; 128 + n in bf16 is 0x4300 + n.
  static __device__ __forceinline__ void decode(const Piece& piece, uint32_t (&pairs)[kElems / 2],
                                                int) {
    const uint32_t zero = 0x43004300u + (piece.scales >> 16 & 0xff) * 0x10001u;
#pragma unroll
    for (int i = 0; i < kElems / 2; ++i) {
      const uint32_t byte = byte_of(piece.codes, i);
      const uint32_t codes = 0x43004300u | (byte & 15) | (byte & 0xf0) << 12;
      asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(pairs[i]) : "r"(codes), "r"(zero));
    }
  }
  static __device__ __forceinline__ float factor(const Piece& piece) {
    if (piece.scales >> 24 != 0) return cuda::values_of_f16(piece.scales).x;
    return cuda::bf16_lo(piece.scales);
  }
};

template <>
struct Decode<Format::kInt4G32> : Decode<Format::kInt4G128> {
  static constexpr int kElemsOfScale = 32;
};

// The n (8 at most) values of 16 bits from `at` on, zeros behind them; `is_wide`: all pieces are
// whole and aligned to 16 bytes. Plain loads: weights, or what a kernel before wrote.
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

// The same of floats, 4 at most.
__device__ __forceinline__ uint4 load_f32(const float* at, int n, bool is_wide) {
  if (is_wide) return cuda::load16(at);
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (i < n) asm volatile("ld.global.u32 %0, [%1];" : "=r"(words[i]) : "l"(at + i));
  return {words[0], words[1], words[2], words[3]};
}

// The same of bytes, 16 at most.
__device__ __forceinline__ uint4 load_bytes(const uint8_t* at, int n, bool is_wide) {
  if (is_wide) return cuda::load16(at);
  uint4 v{};
#pragma unroll 1  // for want of registers
  for (int i = 0; i < 16; i += 4) {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint16_t value = 0;
      if (i + j < n) asm volatile("ld.global.u8 %0, [%1];" : "=h"(value) : "l"(at + i + j));
      word |= static_cast<uint32_t>(value) << 8 * j;
    }
    v = {v.y, v.z, v.w, word};
  }
  return v;
}

// The piece of a row that begins at element k; zeros beyond the row's `cols`. `is_wide`: all rows
// are whole pieces of 16 bytes, aligned; formats of blocks of 16 and 32 always have whole pieces.
template <Format kFormat>
__device__ __forceinline__ Piece load_piece(const uint8_t* codes, const uint8_t* scales, int k,
                                            int cols, bool is_wide) {
  using D = Decode<kFormat>;
  Piece piece{};
  if (k >= cols) return piece;
  if constexpr (kFormat == Format::kBF16 || kFormat == Format::kF16) {
    piece.codes = load_bf16(reinterpret_cast<const uint16_t*>(codes) + k, cols - k, is_wide);
  } else if constexpr (kFormat == Format::kF32) {
    piece.codes = load_f32(reinterpret_cast<const float*>(codes) + k, cols - k, is_wide);
  } else if constexpr (kFormat == Format::kFp8Row || kFormat == Format::kFp8Block) {
    piece.codes = load_bytes(codes + k, cols - k, is_wide);
  } else if constexpr (kFormat == Format::kNvfp4) {
    const uint2 half = cuda::load8(codes + k / 2);
    piece.codes = {half.x, half.y, 0, 0};
  } else {
    piece.codes = cuda::load16(codes + int64_t{k} * 16 / D::kElems);
  }
  if constexpr (D::kScaleBytes == 1) piece.scales = scales[k / D::kElemsOfScale];
  if constexpr (D::kScaleBytes == 4)
    piece.scales = reinterpret_cast<const uint32_t*>(scales)[k / D::kElemsOfScale];
  return piece;
}

// Calls fn.operator()<kFormat>() with a weight's format.
template <typename Fn>
void with_format(Format format, const Fn& fn) {
  switch (format) {
    case Format::kBF16:
      return fn.template operator()<Format::kBF16>();
    case Format::kF16:
      return fn.template operator()<Format::kF16>();
    case Format::kMxfp4:
      return fn.template operator()<Format::kMxfp4>();
    case Format::kMxfp8:
      return fn.template operator()<Format::kMxfp8>();
    case Format::kNvfp4:
      return fn.template operator()<Format::kNvfp4>();
    case Format::kFp8Row:
      return fn.template operator()<Format::kFp8Row>();
    case Format::kFp8Block:
      return fn.template operator()<Format::kFp8Block>();
    case Format::kInt4G32:
      return fn.template operator()<Format::kInt4G32>();
    case Format::kInt4G128:
      return fn.template operator()<Format::kInt4G128>();
    case Format::kF32:
      return fn.template operator()<Format::kF32>();
  }
  CHECK(false && "no format");
}

}  // namespace nibble::ops::gpu
