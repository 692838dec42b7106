// One token with NVFP4 weights in kTiles16x64, in integers: as mma_digits.cuh, with blocks of 16 k.
//
// A step of mma over 32 k has two blocks; column pair i of B is block i of the unit's four, zero in
// the products with the codes of others, so that lane p = i of a quad has its sums. Twice the sum
// of codes times digits is below 2^22: added to 1.5 * 2^23 as an integer it is a float32, and with
// the block's scale in the exponent that which begins so, the product. Sums are in units of 2^16,
// so that no block's is too large for an exponent, nor a sum that ends within float32.
#pragma once

#include "cuda/fp8.cuh"
#include "cuda/mma_digits.cuh"

namespace nibble::cuda {

// A unit's activations in shared memory: the digits of two times 32 k, then of store_digits<16>()
// for each block what its sums begin with, {0, second, 0, second}, and at last its first.
inline constexpr int kUnitBegins = 2 * kDigitBytes, kUnitOrigins = kUnitBegins + 4 * 16;
inline constexpr int kUnitDigitsBytes = kUnitOrigins + 4 * 4;
inline constexpr int kNvfp4UnitBytes = 576;

__device__ __forceinline__ void store_shared_16(uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ float load_shared_float(uint32_t address) {
  return __uint_as_float(load_shared_4(address));
}
__device__ __forceinline__ Sums load_sums(uint32_t address) {
  const uint4 v = load_shared_16(address);
  return {
      {static_cast<int>(v.x), static_cast<int>(v.y), static_cast<int>(v.z), static_cast<int>(v.w)}};
}

// The digits of the 8 values of k = 8 `i` on, of units that stand at `units`. `lanes`, `stores`: of
// store_digits(); i % 4 is this lane's place in its quad.
__device__ __forceinline__ void store_unit_digits(const uint4& x, uint32_t i, uint32_t units,
                                                  uint32_t lanes = this_quad(),
                                                  bool stores = true) {
  const uint32_t unit = units + i / 8 * kUnitDigitsBytes;
  const float2 f = store_digits<16>(x, unit + i / 4 % 2 * kDigitBytes, lanes, stores);
  if (i % 2 == 0 && stores) {
    const uint32_t block = i % 8 / 2;
    store_shared_16(unit + kUnitBegins + block * 16,
                    {0, __float_as_uint(f.y), 0, __float_as_uint(f.y)});
    store_shared_float(unit + kUnitOrigins + block * 4, f.x);
  }
}

// Sums over blocks of 16 k of rows g and g + 8, in units of kBlockUnit.
struct BlockSums {
  float2 sum{0, 0};

  // `origin`: the first of store_digits<16>(), whose second `d` began with; `scales`: E4M3 of row
  // g, then of row g + 8.
  __device__ __forceinline__ void add(const Sums& d, float origin, uint16_t scales) {
    const auto sum_of = [&](int high, int low) {
      return __int_as_float(high * 256 + low) - origin;
    };
    const float2 scale = values_of_f16(f16_of_e4m3(scales));
    sum.x = fmaf(sum_of(d.v[0], d.v[1]), scale.x, sum.x);
    sum.y = fmaf(sum_of(d.v[2], d.v[3]), scale.y, sum.y);
  }
};

__device__ __forceinline__ uint16_t load_shared_2(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}

// d += the products of 32 k of a row tile: words of rows g and g + 8.
__device__ __forceinline__ void multiply_words(Sums& d, const CodeTables& tables, uint32_t row_g,
                                               uint32_t row_g8, uint2 x) {
  const CodeBytes plus(tables.plus, CodeTables::kPlusHigh, row_g, row_g8);
  const CodeBytes minus(tables.minus, CodeTables::kMinusHigh, row_g ^ kSigns, row_g8 ^ kSigns);
  add_product(d, plus, x);
  add_product(d, minus, x);
}

// What of the digits of 32 k a column keeps: of the words' four k the first two are in the first
// block of 16.
__device__ __forceinline__ uint32_t mask_of_block(bool is_first, bool is_second) {
  return is_first ? 0xffffu : is_second ? 0xffff0000u : 0;
}

// A range of kUnits units, whose digits stay in registers for many row tiles.
template <int kUnits>
class Nvfp4Product {
 public:
  __device__ __forceinline__ void load(uint32_t units) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const uint32_t unit = units + u * kUnitDigitsBytes;
#pragma unroll
      for (uint32_t b = 0; b < 2; ++b) {
        const uint2 mine = load_shared_8(unit + b * kDigitBytes + g % 2 * 32 + p * 8);
        const uint32_t kept = mask_of_block(g / 2 == 2 * b, g / 2 == 2 * b + 1);
        digits_[2 * u + b] = {mine.x & kept, mine.y & kept};
      }
    }
    units_ = units;
  }

  // The sum over the range in units of kBlockUnit, of units of weights at a shared address: lane p
  // = 0 has that of row g, lane p = 1 of row g + 8. kTells: calls have_read() when this lane has
  // read all of them, in front of the last two units' products.
  template <bool kTells, class HaveRead>
  __device__ __forceinline__ float run(const CodeTables& tables, uint32_t weights,
                                       const HaveRead& have_read) const {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    const uint32_t codes_at = weights + lane * 16, scales_at = weights + 512 + g * 8 + p * 2;
    const auto codes = [&](int u) { return load_shared_16(codes_at + u * kNvfp4UnitBytes); };
    const auto scales = [&](int u) { return load_shared_2(scales_at + u * kNvfp4UnitBytes); };
    constexpr int kLast = !kTells ? kUnits : kUnits > 2 ? kUnits - 2 : 0;
    uint4 last_codes[2];
    uint16_t last_scales[2];
    BlockSums sums;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (u == kLast) {
#pragma unroll
        for (int i = 0; i < kUnits - kLast; ++i)
          last_codes[i] = codes(u + i), last_scales[i] = scales(u + i);
        have_read();
      }
      const uint4 q = u < kLast ? codes(u) : last_codes[u - kLast];
      const uint32_t unit = units_ + u * kUnitDigitsBytes;
      Sums d = load_sums(unit + kUnitBegins + p * 16);
      multiply_words(d, tables, q.x, q.y, digits_[2 * u]);
      multiply_words(d, tables, q.z, q.w, digits_[2 * u + 1]);
      sums.add(d, load_shared_float(unit + kUnitOrigins + p * 4),
               u < kLast ? scales(u) : last_scales[u - kLast]);
    }
    const float2 sum = sums.sum;
    const bool is_odd = lane % 2 == 1;
    float row = (is_odd ? sum.y : sum.x) + __shfl_xor_sync(0xffffffff, is_odd ? sum.x : sum.y, 1);
    row += __shfl_xor_sync(0xffffffff, row, 2);
    return row;
  }

 private:
  uint2 digits_[2 * kUnits];
  uint32_t units_;  // the rest stays in shared memory: it would take registers that it lacks
};

// One or two tokens, whose digits stay in shared memory, and units of weights one by one. With two
// tokens column pair i is token i % 2 of block i / 2 of 32 k.
template <int kTokens>
class Nvfp4Tokens {
 public:
  // Shared addresses of the tokens' first units.
  __device__ __forceinline__ Nvfp4Tokens(uint32_t first, uint32_t second) {
    const uint32_t lane = threadIdx.x % 32, pair = lane / 8, p = lane % 4;
    const auto of = [&](uint32_t i) { return kTokens == 2 && i % 2 == 1 ? second : first; };
    digits_ = of(pair) + lane / 4 % 2 * 32 + p * 8;
    block_ = kTokens == 1 ? p : p / 2;
    begins_ = of(p) + kUnitBegins + block_ * 16;
    origins_ = of(p) + kUnitOrigins + block_ * 4;
    if constexpr (kTokens == 1)
      kept_[0] = mask_of_block(pair == 0, pair == 1),
      kept_[1] = mask_of_block(pair == 2, pair == 3);
    else
      kept_[0] = kept_[1] = mask_of_block(pair < 2, true);
  }
  // Unit `index` of a row tile, at a shared address.
  __device__ __forceinline__ void add(const CodeTables& tables, uint32_t weights, uint32_t index) {
    const uint32_t lane = threadIdx.x % 32, at = index * kUnitDigitsBytes;
    const uint4 q = load_shared_16(weights + lane * 16);
    const uint32_t scales = weights + 512 + lane / 4 * 8 + block_ * 2;
    const auto digits = [&](int b) {
      const uint2 x = load_shared_8(digits_ + at + b * kDigitBytes);
      return uint2{x.x & kept_[b], x.y & kept_[b]};
    };
    constexpr int kLast = kTokens == 1 ? 0 : 2;  // block
    Sums d = load_sums(begins_ + at);
    multiply_words(d, tables, q.x, q.y, digits(0));
    if constexpr (kTokens == 2) {
      sums_.add(d, load_shared_float(origins_ + at), load_shared_2(scales));
      d = load_sums(begins_ + at + kLast * 16);
    }
    multiply_words(d, tables, q.z, q.w, digits(1));
    sums_.add(d, load_shared_float(origins_ + at + kLast * 4), load_shared_2(scales + kLast * 2));
  }
  // Rows g and g + 8 of token p % kTokens.
  __device__ __forceinline__ float2 total() const {
    float2 sum = sums_.sum;
#pragma unroll
    for (int step = kTokens; step < 4; step *= 2) {
      sum.x += __shfl_xor_sync(0xffffffff, sum.x, step);
      sum.y += __shfl_xor_sync(0xffffffff, sum.y, step);
    }
    return {sum.x * kBlockUnit, sum.y * kBlockUnit};
  }

 private:
  uint32_t digits_, begins_, origins_, block_, kept_[2];
  BlockSums sums_;
};

}  // namespace nibble::cuda
