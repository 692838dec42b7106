// MXFP4 weights times bf16 activations in integers: exact inside a block of 32 k.
//
// An activation block (32 k of a token) becomes 16-bit integers with one power-of-two scale,
// x = scale * (256 hi + lo), hi and lo signed bytes. An E2M1 code becomes the byte 12 + 2w as the
// sum of two bytes that one PRMT each looks up: that of the positive codes (0 where the code is
// negative: bit 3 of a PRMT selector asks for the sign of the byte chosen, and none has one) and,
// with the sign bits flipped, that of the negative ones. Both are multiplied into the same sums by
// mma.m16n8k32 s8, and what the 12s add is known beforehand:
//   sum_k 2w x = scale * (256 A.hi + A.lo - 12 sum_k (256 hi + lo)),  every term exact in float32.
// Error: |x - scale (256 hi + lo)| <= scale / 2, scale = 2^(floor(log2 max|x|) - 13) over the
// block: elements down to 2^-6 of the block's largest keep every bit of a bf16, all are within
// 2^-14 of it.
//
// Order of sums: the terms of blocks b, b + 4, b + 8 ... of a chunk are added in sequence, then
// (0 + 1) + (2 + 3), for any number of tokens: a row's result does not depend on how many share the
// weights.
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

// word >> 16, by the pipe that multiplies: PRMT and LOP3 share theirs with shifts, and it binds
// products of few tokens.
__device__ __forceinline__ uint32_t upper_half(uint32_t word) {
  uint32_t r;
  asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(word), "r"(0x100), "r"(0));
  return r;
}

// 12 + 2w of the positive codes of E2M1 and of the negative ones. What is not an immediate operand
// of a PRMT must come from a register that ptxas cannot see through: it would copy the constant
// anew for every one.
struct CodeTables {
  static constexpr uint32_t kPlusLow = 0x0f0e0d0c, kPlusHigh = 0x18141210;
  static constexpr uint32_t kMinusLow = 0x090a0b0c, kMinusHigh = 0x00040608;
  uint32_t plus, minus;

  // `words`: any 8 bytes of shared memory, aligned to 8, of this thread's warp.
  __device__ __forceinline__ explicit CodeTables(uint32_t words) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(words), "r"(kPlusLow), "r"(kMinusLow)
                 : "memory");
    __syncwarp();
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(plus), "=r"(minus) : "r"(words));
  }
};

// The A operand from the codes of rows g and g + 8: one half of the sum of two.
struct CodeBytes {
  uint32_t a[4];
  __device__ __forceinline__ CodeBytes(uint32_t low, uint32_t high, uint32_t row_g, uint32_t row_g8)
      : a{byte_permute(low, high, row_g), byte_permute(low, high, row_g8),
          byte_permute(low, high, upper_half(row_g)), byte_permute(low, high, upper_half(row_g8))} {
  }
};

inline constexpr uint32_t kSigns = 0x88888888;

struct Sums {
  int v[4];  // row g, columns 2p and 2p + 1; row g + 8
};

__device__ __forceinline__ void set_product(Sums& d, const CodeBytes& w, uint2 b) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=r"(d.v[0]), "=r"(d.v[1]), "=r"(d.v[2]), "=r"(d.v[3])
      : "r"(w.a[0]), "r"(w.a[1]), "r"(w.a[2]), "r"(w.a[3]), "r"(b.x), "r"(b.y), "r"(0));
}
__device__ __forceinline__ void add_product(Sums& d, const CodeBytes& w, uint2 b) {
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

// The lanes of this lane's quad. Where a whole warp runs, ~0u in its place spares shuffles the
// search for who else has the same mask.
__device__ __forceinline__ uint32_t this_quad() { return 15u << (threadIdx.x & 28); }

// A byte of four words, lane q of each quad holding words of bytes (p = 0..3): lane p gets those of
// lanes q = 0..3.
__device__ __forceinline__ uint32_t transpose_quad(uint32_t word, uint32_t lanes = this_quad()) {
  const uint32_t lane = threadIdx.x % 4;
  uint32_t other = __shfl_xor_sync(lanes, word, 1);
  word = byte_permute(word, other, lane & 1 ? 0x3715 : 0x6240);
  other = __shfl_xor_sync(lanes, word, 2);
  return byte_permute(word, other, lane & 2 ? 0x3276 : 0x5410);
}

// The digits of k = 8q .. 8q + 7 (bf16 pairs) of a block, q = this lane's place in its quad: the
// four lanes of a quad hold one block. Returns in every lane what turns the sums A of the block
// into products: {scale / 2, -12 scale / 2 * sum of the integers}; NaN where an element is not
// finite. `lanes`: those that run together; `stores`: this lane's quarter is one.
//
// kBlock 16: a quad holds two blocks, each with a scale of its own, and what is returned is o and,
// as an integer, o less 12 times their sum: the float32 that is A more than that is, less o, the
// block's product in units of kBlockUnit. o is 1.5 * 2^23 times half the scale in those units,
// whose exponent no block's exceeds.
inline constexpr float kBlockUnit = 0x1p16f;
template <int kBlock = 32>
__device__ __forceinline__ float2 store_digits(const uint4& pairs, uint32_t block_address,
                                               uint32_t lanes = this_quad(), bool stores = true) {
  const uint32_t word[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
  // Magnitudes of bf16 order as integers do.
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) most = max(most, max(word[i] >> 16 & 0x7fff, word[i] & 0x7fff));
  most = max(most, __shfl_xor_sync(lanes, most, 1));
  if constexpr (kBlock == 32) most = max(most, __shfl_xor_sync(lanes, most, 2));
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
  const uint2 hi = {transpose_quad(hi_even, lanes), transpose_quad(hi_odd, lanes)};
  const uint2 lo = {transpose_quad(lo_even, lanes), transpose_quad(lo_odd, lanes)};
  if (stores) {
    store_shared_8(at, hi.x, hi.y);
    store_shared_8(at + kDigitBytes / 2, lo.x, lo.y);
  }
  constexpr int kOnes = 0x01010101;
  int sum = __dp4a(static_cast<int>(hi_even), kOnes, __dp4a(static_cast<int>(hi_odd), kOnes, 0));
  sum =
      __dp4a(static_cast<int>(lo_even), kOnes, __dp4a(static_cast<int>(lo_odd), kOnes, sum * 256));
  sum += __shfl_xor_sync(lanes, sum, 1);
  if constexpr (kBlock == 32) sum += __shfl_xor_sync(lanes, sum, 2);
  const auto or_nan = [&](uint32_t bits) {
    return __uint_as_float(exponent == 255 ? 0x7fc00000 : bits);
  };
  if constexpr (kBlock == 16) {
    const uint32_t origin = (exponent - 7) << 23 | 0x400000;
    return {or_nan(origin), __uint_as_float(origin - 12 * static_cast<uint32_t>(sum))};
  }
  const float half = or_nan((exponent - 14) << 23);
  return {half, -12.f * static_cast<float>(sum) * half};
}

// 16-bit scales of a unit: of rows g and g + 8.
__device__ __forceinline__ uint32_t load_scale_pair(uint32_t unit, uint32_t block) {
  uint16_t v;
  const uint32_t g = threadIdx.x % 32 / 4;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(unit + 512 + 4 * g + 2 * block));
  return v;
}
// sum += products of a block. `factors`: of store_digits().
__device__ __forceinline__ void add_scaled(float2& sum, const Sums& d, float2 factors,
                                           uint32_t scale_pair) {
  const float g = fmaf(static_cast<float>(d.v[0] * 256 + d.v[1]), factors.x, factors.y);
  const float g8 = fmaf(static_cast<float>(d.v[2] * 256 + d.v[3]), factors.x, factors.y);
  sum.x = fmaf(g, __uint_as_float((scale_pair & 255) << 23), sum.x);
  sum.y = fmaf(g8, __uint_as_float(scale_pair >> 8 << 23), sum.y);
}

// What is read of a chunk, kUnits units of one row tile at a shared address, which may be
// overwritten then: the codes, and the scales of rows g and g + 8: of both blocks of each unit, or,
// where kTogether blocks share their sums, of that block of each kTogether whose column pair this
// lane has.
template <int kUnits, int kTogether>
struct ChunkCodes {
  static constexpr int kRounds = (2 * kUnits + kTogether - 1) / kTogether;
  uint4 unit[kUnits];
  uint32_t scales[kTogether == 1 ? kUnits : kRounds];

  __device__ __forceinline__ explicit ChunkCodes(uint32_t address) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) unit[u] = load_shared_16(address + u * kUnitBytes + lane * 16);
    if constexpr (kTogether == 1) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
        scales[u] = load_shared_4(address + u * kUnitBytes + 512 + g * 4);
    } else {
#pragma unroll
      for (int r = 0; r < kRounds; ++r) scales[r] = load_scales(address, r, p);
    }
  }
  // Of two row tiles rows 8 half .. alone, as rows g and g + 8. The tiles may be the same: then a
  // product takes half of the instructions.
  __device__ __forceinline__ ChunkCodes(uint32_t first, uint32_t second, uint32_t half) {
    const uint32_t lane = threadIdx.x % 32;
    const bool is_second = half != 0, is_same = first == second;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const uint4 a = load_shared_16(first + u * kUnitBytes + lane * 16);
      unit[u].x = is_second ? a.y : a.x, unit[u].z = is_second ? a.w : a.z;
      const uint4 b = is_same ? a : load_shared_16(second + u * kUnitBytes + lane * 16);
      unit[u].y = is_second ? b.y : b.x, unit[u].w = is_second ? b.w : b.z;
    }
#pragma unroll
    for (int r = 0; r < kRounds; ++r)
      scales[r] = byte_permute(load_scales(first, r, lane % 4), load_scales(second, r, lane % 4),
                               is_second ? 0x2251 : 0x2240);
  }
  // Of block b: row g, row g + 8.
  __device__ __forceinline__ uint32_t row_g(int b) const {
    return b % 2 == 0 ? unit[b / 2].x : unit[b / 2].z;
  }
  __device__ __forceinline__ uint32_t row_g8(int b) const {
    return b % 2 == 0 ? unit[b / 2].y : unit[b / 2].w;
  }

 private:
  // Of the p-th of the kTogether blocks of round r.
  static __device__ __forceinline__ uint32_t load_scales(uint32_t address, int r, uint32_t p) {
    // Past the end of an odd chunk lanes 2 and 3 have sums of 0: any finite scale of the row does.
    const bool is_whole = kTogether * (r + 1) <= 2 * kUnits;
    const uint32_t block = is_whole ? p / (4 / kTogether) : p % 2;
    return load_scale_pair(address + (r * kTogether / 2 + block / 2) * kUnitBytes, block % 2);
  }
};

// Products of kTokens tokens with chunks of kUnits units: 1 or 2 or a multiple of 4. Columns 2i and
// 2i + 1 of B are hi and lo of token i of four; with less than four tokens the others would stay
// empty, so they take the next blocks: column pair i is block i / kTokens of kTogether, token
// i % kTokens, zero in the products with the codes of other blocks. The sums of kTogether blocks
// then cost one conversion.
//
// In shared memory: digits [block][kStride][64], factors [block][kStride] of 8 bytes.
inline constexpr int kZeroBytes = 1024;  // what columns without digits read

template <int kUnits, int kTokens, int kStride = kTokens>
class TokensProduct {
 public:
  static constexpr int kBlocks = 2 * kUnits;
  static constexpr int kQuads = kTokens < 4 ? 1 : kTokens / 4;
  static constexpr int kTogether = kTokens < 4 ? 4 / kTokens : 1;
  static constexpr int kRounds = ChunkCodes<kUnits, kTogether>::kRounds;
  static_assert(kTokens % 4 == 0 || (kTokens < 4 && kStride == kTokens));

  using Chunk = ChunkCodes<kUnits, kTogether>;

  // Shared addresses of block 0 of digits and factors, and of kZeroBytes of zeros.
  __device__ __forceinline__ TokensProduct(uint32_t digits, uint32_t factors, uint32_t zeros)
      : zeros_(zeros) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    factors_ = factors + p * 8;
    // Column g is of the turn-th of kTogether blocks.
    turn_ = g / (2 * kTokens);
    digits_ = kTogether == 1
                  ? digits + lane * 8
                  : digits + turn_ * kTokens * kDigitBytes + g % (2 * kTokens) * 32 + p * 8;
  }

  // Sums of rows g and g + 8 over a chunk whose first block is `block`: result[i] of lane p: token
  // 4i + p, or with less than 4 tokens p % kTokens.
  __device__ __forceinline__ void run(float2 (&result)[kQuads], const CodeTables& tables,
                                      const Chunk& w, uint32_t block) const {
    constexpr int kSums = kTokens < 4 ? kTokens : 4;
    float2 sums[kQuads][kSums] = {};
    const uint32_t mine = digits_ + block * (kStride * kDigitBytes);
    uint32_t x_at[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) x_at[i] = kTogether == 1 || turn_ == i ? mine : zeros_;
    const uint32_t factors_at = factors_ + block * (kStride * 8);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      Sums d[kQuads];
#pragma unroll
      for (int i = 0; i < kTogether && kTogether * r + i < kBlocks; ++i) {
        const int b = kTogether * r + i;
        const CodeBytes plus(tables.plus, CodeTables::kPlusHigh, w.row_g(b), w.row_g8(b));
        const CodeBytes minus(tables.minus, CodeTables::kMinusHigh, w.row_g(b) ^ kSigns,
                              w.row_g8(b) ^ kSigns);
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          const uint2 x = load_shared_8(x_at[i] + (r * kTogether * kStride + q * 4) * kDigitBytes);
          if (i == 0)
            set_product(d[q], plus, x);
          else
            add_product(d[q], plus, x);
          add_product(d[q], minus, x);
        }
      }
      uint32_t pair = w.scales[kTogether == 1 ? r / 2 : r];
      if constexpr (kTogether == 1) pair = r % 2 == 0 ? pair & 0xffff : pair >> 16;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const bool is_odd = kTogether * (r + 1) > kBlocks;
        const uint32_t at = is_odd && threadIdx.x % 4 >= 2 ? zeros_ : factors_at;
        const uint2 f = load_shared_8(at + (r * kTogether * kStride + q * 4) * 8);
        add_scaled(sums[q][r % kSums], d[q], {__uint_as_float(f.x), __uint_as_float(f.y)}, pair);
      }
    }
#pragma unroll
    for (int q = 0; q < kQuads; ++q) result[q] = total(sums[q]);
  }

 private:
  static __device__ __forceinline__ float2 plus_lane(float2 v, int step) {
    return {v.x + __shfl_xor_sync(0xffffffff, v.x, step),
            v.y + __shfl_xor_sync(0xffffffff, v.y, step)};
  }
  // (0 + 1) + (2 + 3) of the sums over blocks b, b + 4 ..., of which this lane has kSums.
  template <int kSums>
  static __device__ __forceinline__ float2 total(const float2 (&s)[kSums]) {
    if constexpr (kSums == 1) {
      return plus_lane(plus_lane(s[0], 1), 2);
    } else if constexpr (kSums == 2) {
      const float2 low = plus_lane(s[0], 2), high = plus_lane(s[1], 2);
      return {low.x + high.x, low.y + high.y};
    } else {
      return {(s[0].x + s[1].x) + (s[2].x + s[3].x), (s[0].y + s[1].y) + (s[2].y + s[3].y)};
    }
  }

  uint32_t digits_, factors_, zeros_, turn_;
};

// One token and a fixed range of kUnits units: its digits stay in registers for many row tiles. The
// sums are TokensProduct<kUnits, 1>'s, bit for bit.
template <int kUnits>
class RangeProduct {
 public:
  static constexpr int kBlocks = 2 * kUnits;
  using Chunk = ChunkCodes<kUnits, 4>;

  // Shared addresses: digits [kBlocks][64], factors [kBlocks] of 8 bytes.
  __device__ __forceinline__ void load(uint32_t digits, uint32_t factors) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const uint2 mine = load_shared_8(digits + b * kDigitBytes + g % 2 * 32 + p * 8);
      const uint32_t is_mine = g / 2 == b % 4 ? 0xffffffff : 0;  // the column pair of block b
      digits_[b] = {mine.x & is_mine, mine.y & is_mine};
    }
#pragma unroll
    for (int r = 0; r < Chunk::kRounds; ++r) {
      const uint2 mine = load_shared_8(factors + min(4 * r + p, kBlocks - 1u) * 8);
      const uint32_t is_mine = 4 * r + p < kBlocks ? 0xffffffff : 0;
      factors_[r] = {mine.x & is_mine, mine.y & is_mine};
    }
  }

  // The sum over the range: lane p = 0 has that of row g, lane p = 1 of row g + 8.
  __device__ __forceinline__ float run(const CodeTables& tables, const Chunk& w) const {
    Sums d[Chunk::kRounds];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const CodeBytes plus(tables.plus, CodeTables::kPlusHigh, w.row_g(b), w.row_g8(b));
      const CodeBytes minus(tables.minus, CodeTables::kMinusHigh, w.row_g(b) ^ kSigns,
                            w.row_g8(b) ^ kSigns);
      if (b % 4 == 0)
        set_product(d[b / 4], plus, digits_[b]);
      else
        add_product(d[b / 4], plus, digits_[b]);
      add_product(d[b / 4], minus, digits_[b]);
    }
    float2 sum{0, 0};
#pragma unroll
    for (int r = 0; r < Chunk::kRounds; ++r)
      add_scaled(sum, d[r], {__uint_as_float(factors_[r].x), __uint_as_float(factors_[r].y)},
                 w.scales[r]);
    // (0 + 1) + (2 + 3) of the lanes' sums: even lanes add up row g, odd ones row g + 8.
    const bool is_odd = threadIdx.x % 2 == 1;
    float row = (is_odd ? sum.y : sum.x) + __shfl_xor_sync(0xffffffff, is_odd ? sum.x : sum.y, 1);
    row += __shfl_xor_sync(0xffffffff, row, 2);
    return row;
  }

 private:
  uint2 digits_[kBlocks], factors_[Chunk::kRounds];
};

}  // namespace nibble::cuda
