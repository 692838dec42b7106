// MXFP4 weights times bf16 activations in integers: exact inside a block of 32 k.
//
// An activation block (32 k of a token) becomes 16-bit integers with one power-of-two scale,
// x = scale * (256 hi + lo), hi and lo signed bytes; an E2M1 code becomes the signed byte 2w as the
// difference of two bytes that one PRMT each looks up: the positive codes (0 where the code is
// negative: bit 3 of a PRMT selector asks for the sign of the byte chosen, and none has one) and,
// with the sign bits flipped, the negative ones. mma.m16n8k32 s8 sums in int32:
//   sum_k 2w x = scale * (256 (P.hi - N.hi) + (P.lo - N.lo)),  |...| < 2^24: exact in float32.
// Error: |x - scale (256 hi + lo)| <= scale / 2, scale = 2^(floor(log2 max|x|) - 13) over the
// block: elements down to 2^-6 of the block's largest keep every bit of a bf16, all are within
// 2^-14 of it.
//
// Order of sums: the terms of blocks b, b + 4, b + 8 ... of a chunk are added in sequence, then
// (0 + 1) + (2 + 3); both products below keep it, so a row's result does not depend on how many
// tokens share the weights.
//
// Lane l: g = l / 4, p = l % 4, as in mma's fragments. A weight's bytes: Layout::kTiles16x64.
#pragma once

#include <cstdint>

namespace nibble::cuda {

inline constexpr int kUnitBytes = 544;  // 16 rows x 64 k with their scales

// The digits of a block of 32 k of one token: 32 bytes of hi, 32 of lo; lane p's 8 bytes of a digit
// at 8p: byte j is k = 8j + 2p, byte 4 + j is k = 8j + 2p + 1.
inline constexpr int kDigitBytes = 64;

__device__ __forceinline__ uint32_t byte_permute(uint32_t low, uint32_t high, uint32_t selectors) {
  uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(selectors));
  return r;
}

// 2 |w| of E2M1: {0, 1, 2, 3}, {4, 6, 8, 12}.
inline constexpr uint32_t kMagnitudesLow = 0x03020100, kMagnitudesHigh = 0x0c080604;

// The A operand from the codes of rows g and g + 8: magnitudes of those whose sign bit is clear.
struct Magnitudes {
  uint32_t a[4];
  __device__ __forceinline__ Magnitudes(uint32_t low_table, uint32_t row_g, uint32_t row_g8)
      : a{byte_permute(low_table, kMagnitudesHigh, row_g),
          byte_permute(low_table, kMagnitudesHigh, row_g8),
          byte_permute(low_table, kMagnitudesHigh, row_g >> 16),
          byte_permute(low_table, kMagnitudesHigh, row_g8 >> 16)} {}
};
inline constexpr uint32_t kSigns = 0x88888888;

struct Sums {
  int v[4];  // row g, columns 2p and 2p + 1; row g + 8
};

__device__ __forceinline__ void set_product(Sums& d, const Magnitudes& w, uint2 b) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=r"(d.v[0]), "=r"(d.v[1]), "=r"(d.v[2]), "=r"(d.v[3])
      : "r"(w.a[0]), "r"(w.a[1]), "r"(w.a[2]), "r"(w.a[3]), "r"(b.x), "r"(b.y), "r"(0));
}
__device__ __forceinline__ void add_product(Sums& d, const Magnitudes& w, uint2 b) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d.v[0]), "+r"(d.v[1]), "+r"(d.v[2]), "+r"(d.v[3])
      : "r"(w.a[0]), "r"(w.a[1]), "r"(w.a[2]), "r"(w.a[3]), "r"(b.x), "r"(b.y));
}

__device__ __forceinline__ uint2 load_shared_8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}
__device__ __forceinline__ uint32_t load_shared_4(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address));
  return v;
}
__device__ __forceinline__ void store_shared_8(uint32_t address, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void store_shared_float(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}

// kMagnitudesLow in a register that ptxas cannot see through: it would copy the constant anew for
// every PRMT, a quarter of the loop. `word`: any 4 bytes of shared memory of this thread's warp.
__device__ __forceinline__ uint32_t low_table(uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(word), "r"(kMagnitudesLow) : "memory");
  __syncwarp();
  return load_shared_4(word);
}

// A byte of four words, lane q of each quad holding words of bytes (p = 0..3): lane p gets those of
// lanes q = 0..3.
__device__ __forceinline__ uint32_t transpose_quad(uint32_t word) {
  const uint32_t lane = threadIdx.x % 4, quad = 15u << (threadIdx.x & 28);
  uint32_t other = __shfl_xor_sync(quad, word, 1);
  word = byte_permute(word, other, lane & 1 ? 0x3715 : 0x6240);
  other = __shfl_xor_sync(quad, word, 2);
  return byte_permute(word, other, lane & 2 ? 0x3276 : 0x5410);
}

// The digits of k = 8q .. 8q + 7 (bf16 pairs) of a block, q = this lane's place in its quad: the
// four lanes of a quad hold one block. Returns the block's scale, in every lane; NaN where an
// element is not finite.
__device__ __forceinline__ float store_digits(const uint4& pairs, uint32_t block_address) {
  const uint32_t word[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
  // Magnitudes of bf16 order as integers do.
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) most = max(most, max(word[i] >> 16 & 0x7fff, word[i] & 0x7fff));
  const uint32_t quad = 15u << (threadIdx.x & 28);
  most = max(most, __shfl_xor_sync(quad, most, 1));
  most = max(most, __shfl_xor_sync(quad, most, 2));
  // Below 2^-111 digits lose bits, so that scales stay normal numbers.
  const uint32_t exponent = max(most >> 7, 16u);
  const float inverse = __uint_as_float((267 - min(exponent, 254u)) << 23);
  // 1.5 * 2^23 + v: the low 16 bits are v in two's complement, |v| < 2^14 + 1.
  uint32_t even[4], odd[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    even[i] = __float_as_uint(fmaf(__uint_as_float(word[i] << 16), inverse, 12582912.f));
    odd[i] = __float_as_uint(fmaf(__uint_as_float(word[i] & 0xffff0000u), inverse, 12582912.f));
  }
  // Byte `b` of four words.
  const auto gather = [](const uint32_t(&v)[4], uint32_t b) {
    const uint32_t selectors = b | (b + 4) << 4;
    return byte_permute(byte_permute(v[0], v[1], selectors), byte_permute(v[2], v[3], selectors),
                        0x5410);
  };
  const uint32_t lo_even = gather(even, 0), lo_odd = gather(odd, 0);
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // hi = (v + 128) >> 8
    even[i] += 128;
    odd[i] += 128;
  }
  const uint32_t hi_even = gather(even, 1), hi_odd = gather(odd, 1);
  const uint32_t at = block_address + threadIdx.x % 4 * 8;
  store_shared_8(at, transpose_quad(hi_even), transpose_quad(hi_odd));
  store_shared_8(at + kDigitBytes / 2, transpose_quad(lo_even), transpose_quad(lo_odd));
  return exponent == 255 ? __uint_as_float(0x7fc00000) : __uint_as_float((exponent - 13) << 23);
}

// 16-bit scales of a unit: of rows g and g + 8.
__device__ __forceinline__ uint32_t load_scale_pair(uint32_t unit, uint32_t block) {
  uint16_t v;
  const uint32_t g = threadIdx.x % 32 / 4;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(unit + 512 + 4 * g + 2 * block));
  return v;
}
__device__ __forceinline__ void add_scaled(float2& sum, const Sums& plus, const Sums& minus,
                                           float scale, uint32_t scale_pair) {
  const float g = static_cast<float>((plus.v[0] - minus.v[0]) * 256 + (plus.v[1] - minus.v[1]));
  const float g8 = static_cast<float>((plus.v[2] - minus.v[2]) * 256 + (plus.v[3] - minus.v[3]));
  sum.x = fmaf(g * scale, __uint_as_float((scale_pair & 255) << 23), sum.x);
  sum.y = fmaf(g8 * scale, __uint_as_float(scale_pair >> 8 << 23), sum.y);
}

// The codes of a chunk: kUnits units of one row tile at a shared address.
template <int kUnits>
struct ChunkCodes {
  uint4 unit[kUnits];
  __device__ __forceinline__ explicit ChunkCodes(uint32_t address) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      unit[u] = load_shared_16(address + u * kUnitBytes + threadIdx.x % 32 * 16);
  }
  // Of block b: row g, row g + 8.
  __device__ __forceinline__ uint32_t row_g(int b) const {
    return b % 2 == 0 ? unit[b / 2].x : unit[b / 2].z;
  }
  __device__ __forceinline__ uint32_t row_g8(int b) const {
    return b % 2 == 0 ? unit[b / 2].y : unit[b / 2].w;
  }
};

// One token. Columns 2i and 2i + 1 of B are hi and lo of block i of four and zero for the others,
// so four blocks add up in one accumulator and lane p receives block p.
template <int kUnits>
struct OneToken {
  static constexpr int kRounds = (kUnits + 1) / 2;  // of four blocks
  ChunkCodes<kUnits> codes;
  uint32_t scale_pairs[kRounds];

  // Everything of the chunk that is read from `address`, which may be overwritten then.
  __device__ __forceinline__ explicit OneToken(uint32_t address) : codes(address) {
    const uint32_t p = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      // Past the end of an odd chunk lanes 2 and 3 have sums of 0: any finite scale of the row
      // does.
      const uint32_t unit = 2 * r + 1 < kUnits ? 2 * r + p / 2 : 2 * r;
      scale_pairs[r] = load_scale_pair(address + unit * kUnitBytes, p % 2);
    }
  }

  // Sums of rows g and g + 8 over the chunk, in all lanes of a quad. digits[i] + offset: what this
  // lane reads for block i of the chunk's first four: digits where g / 2 == i, zeros elsewhere.
  // scales: shared address of the scale of block p of the chunk.
  __device__ __forceinline__ float2 product(uint32_t table, const uint32_t (&digits)[4],
                                            uint32_t offset, uint32_t scales) const {
    float2 sum{0, 0};
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      Sums plus, minus;
#pragma unroll
      for (int i = 0; i < 4 && 4 * r + i < 2 * kUnits; ++i) {
        const int b = 4 * r + i;
        const uint2 x = load_shared_8(digits[i] + offset + b * kDigitBytes);
        const Magnitudes p(table, codes.row_g(b), codes.row_g8(b));
        const Magnitudes n(table, codes.row_g(b) ^ kSigns, codes.row_g8(b) ^ kSigns);
        if (i == 0) {
          set_product(plus, p, x);
          set_product(minus, n, x);
        } else {
          add_product(plus, p, x);
          add_product(minus, n, x);
        }
      }
      const float scale = __uint_as_float(load_shared_4(scales + r * 16));
      add_scaled(sum, plus, minus, scale, scale_pairs[r]);
    }
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
      sum.x += __shfl_xor_sync(0xffffffff, sum.x, step);
      sum.y += __shfl_xor_sync(0xffffffff, sum.y, step);
    }
    return sum;
  }
};

// Some tokens, four a column group: columns 2t and 2t + 1 of B are hi and lo of token t of four.
template <int kUnits>
struct FewTokens {
  ChunkCodes<kUnits> codes;
  uint32_t scales_of[kUnits];  // row g and g + 8 of block 0, then of block 1

  __device__ __forceinline__ explicit FewTokens(uint32_t address) : codes(address) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      scales_of[u] = load_shared_4(address + u * kUnitBytes + 512 + threadIdx.x % 32 / 4 * 4);
  }

  // Sums of rows g and g + 8 over the chunk for tokens 4i + p, i < kQuads. digits: shared address
  // of the chunk's first block, [block][kTokens]; scales: likewise.
  template <int kQuads, int kTokens>
  __device__ __forceinline__ void product(float2 (&result)[kQuads], uint32_t table, uint32_t digits,
                                          uint32_t scales) const {
    const uint32_t lane = threadIdx.x % 32;
    float2 sums[kQuads][4] = {};
#pragma unroll
    for (int b = 0; b < 2 * kUnits; ++b) {
      const Magnitudes p(table, codes.row_g(b), codes.row_g8(b));
      const Magnitudes n(table, codes.row_g(b) ^ kSigns, codes.row_g8(b) ^ kSigns);
      const uint32_t pair = b % 2 == 0 ? scales_of[b / 2] & 0xffff : scales_of[b / 2] >> 16;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const uint2 x = load_shared_8(digits + (b * kTokens + 4 * i) * kDigitBytes + lane * 8);
        const float scale =
            __uint_as_float(load_shared_4(scales + (b * kTokens + 4 * i + lane % 4) * 4));
        Sums plus, minus;
        set_product(plus, p, x);
        set_product(minus, n, x);
        add_scaled(sums[i][b % 4], plus, minus, scale, pair);
      }
    }
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float2(&s)[4] = sums[i];
      result[i] = {(s[0].x + s[1].x) + (s[2].x + s[3].x), (s[0].y + s[1].y) + (s[2].y + s[3].y)};
    }
  }
};

}  // namespace nibble::cuda
