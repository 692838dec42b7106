// What the tensor cores of SM12x add up, bit by bit: a model of one element of mma's
// kind::mxf8f6f4.block_scale, m16n8k32, and kind::mxf4nvf4.block_scale.scale_vec::4X, m16n8k64, as
// microsoft/MMA-Sim (c785138, arXiv 2511.10909) found them on an RTX Blackwell. No GB10 has
// confirmed them yet. Host and device.
//
// k32: all 32 products and the old sum are aligned to the largest exponent among them, each cut
// towards zero behind 25 fraction bits, added exactly, and the sum is cut to float32. A product's
// exponent is that of its factors and of the blocks' scales, not of its value.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define NIBBLE_BOTH_SIDES __host__ __device__ __forceinline__
#else
#define NIBBLE_BOTH_SIDES inline
#endif
#ifdef __CUDA_ARCH__
#define NIBBLE_ROLLED _Pragma("unroll 1")
#else
#define NIBBLE_ROLLED
#endif

namespace nibble::cuda::sm12x {

inline constexpr int kNoExponent = -126;         // of zeros, as of subnormals
inline constexpr int32_t kNotANumber = 1 << 30;  // a significand that none of these has

// significand * 2^(exponent - fraction bits), those of its format.
struct Term {
  int32_t significand;
  int exponent;
};

NIBBLE_BOTH_SIDES uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
NIBBLE_BOTH_SIDES float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// 23 fraction bits. Finite ones alone.
NIBBLE_BOTH_SIDES Term float32_term(float value) {
  const uint32_t bits = bits_of(value), exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
  const auto s = static_cast<int32_t>(exponent == 0 ? fraction : fraction | 0x800000);
  return {bits >> 31 ? -s : s, exponent == 0 ? kNoExponent : static_cast<int>(exponent) - 127};
}

// 3 fraction bits.
NIBBLE_BOTH_SIDES Term e4m3_term(uint32_t code) {
  const int exponent = static_cast<int>(code >> 3 & 15), fraction = static_cast<int>(code & 7);
  if (exponent == 15 && fraction == 7) return {kNotANumber, 0};
  const int32_t s = exponent == 0 ? fraction : fraction | 8;
  return {code & 0x80 ? -s : s, s == 0 ? kNoExponent : exponent == 0 ? -6 : exponent - 7};
}

// 3 fraction bits, as E4M3's: 0.5 is the subnormal.
NIBBLE_BOTH_SIDES Term e2m1_term(uint32_t code) {
  const int exponent = static_cast<int>(code >> 1 & 3), fraction = static_cast<int>(code & 1);
  const int32_t s = exponent == 0 ? 4 * fraction : 8 + 4 * fraction;
  return {code & 8 ? -s : s, s == 0 ? kNoExponent : exponent == 0 ? 0 : exponent - 1};
}

// v * 2^n, towards zero.
NIBBLE_BOTH_SIDES int64_t cut(int64_t v, int n) {
  if (n >= 0) return v * (int64_t{1} << n);
  if (n <= -63) return 0;
  return v < 0 ? -((-v) >> -n) : v >> -n;
}

// v * 2^exponent as float32, towards zero.
NIBBLE_BOTH_SIDES float float32_towards_zero(int64_t v, int exponent) {
  if (v == 0) return 0;
  const uint32_t sign = v < 0 ? 0x80000000u : 0;
  const auto magnitude = static_cast<uint64_t>(v < 0 ? -v : v);
  int top = 63;
  while ((magnitude >> top & 1) == 0) --top;
  const int high = top + exponent;  // 2^high <= |value| < 2^(high + 1)
  if (high > 127) return float_of(sign | 0x7f800000u);
  const int drop = high < -126 ? -149 - exponent : top - 23;  // bits below float32's last
  const uint64_t kept = drop >= 0 ? (drop > 63 ? 0 : magnitude >> drop) : magnitude << -drop;
  if (high < -126) return float_of(sign | static_cast<uint32_t>(kept));
  return float_of(sign | static_cast<uint32_t>(high + 127) << 23 |
                  (static_cast<uint32_t>(kept) & 0x7fffff));
}

// sum + 2^(scale_a + scale_b - 254) times the products a(k) b(k) of k < 32, factors of 3 fraction
// bits each; a and b are asked twice. Scales are E8M0: 255 is NaN.
template <typename A, typename B>
NIBBLE_BOTH_SIDES float dot_k32(const A& a, const B& b, uint32_t scale_a, uint32_t scale_b,
                                float sum) {
  constexpr int kFraction = 25;
  const int scale = static_cast<int>(scale_a + scale_b) - 254;
  const Term c = float32_term(sum);
  bool is_number = scale_a != 255 && scale_b != 255 && (bits_of(sum) >> 23 & 255) != 255;
  int most = c.exponent;
  NIBBLE_ROLLED
  for (int k = 0; k < 32; ++k) {
    const Term x = a(k), y = b(k);
    is_number &= x.significand != kNotANumber && y.significand != kNotANumber;
    const int exponent = x.exponent + y.exponent + scale;
    most = exponent > most ? exponent : most;
  }
  int64_t v = cut(c.significand, kFraction - 23 + c.exponent - most);
  NIBBLE_ROLLED
  for (int k = 0; k < 32; ++k) {
    const Term x = a(k), y = b(k);
    v += cut(int64_t{x.significand} * y.significand,
             kFraction - 6 + x.exponent + y.exponent + scale - most);
  }
  return is_number ? float32_towards_zero(v, most - kFraction) : float_of(0x7fffffff);
}

// 2 times an E2M1.
NIBBLE_BOTH_SIDES int32_t twice_e2m1(uint32_t code) {
  const auto v = static_cast<int32_t>(0xc8643210u >> 4 * (code & 7) & 15);  // 0 1 2 3 4 6 8 12
  return code & 8 ? -v : v;
}

// Of E8M0, in the units of e4m3_term().
NIBBLE_BOTH_SIDES Term e8m0_term(uint32_t code) {
  return {code == 255 ? kNotANumber : 8, static_cast<int>(code) - 127};
}

// sum + the products a(k) b(k) of k < 64, E2M1 each, times the scales scale_a(g) scale_b(g), as
// terms, of their group g of 16. An E4M3 scale's sign is not looked at.
template <typename A, typename B, typename ScaleA, typename ScaleB>
NIBBLE_BOTH_SIDES float dot_k64(const A& a, const B& b, const ScaleA& scale_a,
                                const ScaleB& scale_b, float sum) {
  constexpr int kFraction = 35, kGroups = 4;
  const Term c = float32_term(sum);
  bool is_number = (bits_of(sum) >> 23 & 255) != 255;
  Term groups[kGroups];  // 8 fraction bits: 2 of the products, 3 of each scale
  int most = c.exponent;
  NIBBLE_ROLLED
  for (int g = 0; g < kGroups; ++g) {
    const Term x = scale_a(g), y = scale_b(g);
    is_number &= x.significand != kNotANumber && y.significand != kNotANumber;
    int32_t quarters = 0;
    NIBBLE_ROLLED
    for (int k = 16 * g; k < 16 * (g + 1); ++k) quarters += twice_e2m1(a(k)) * twice_e2m1(b(k));
    groups[g] = {is_number ? quarters * x.significand * y.significand : 0, x.exponent + y.exponent};
    most = groups[g].exponent > most ? groups[g].exponent : most;
  }
  int64_t v = cut(c.significand, kFraction - 23 + c.exponent - most);
  NIBBLE_ROLLED
  for (int g = 0; g < kGroups; ++g)
    v += cut(groups[g].significand, kFraction - 8 + groups[g].exponent - most);
  return is_number ? float32_towards_zero(v, most - kFraction) : float_of(0x7fffffff);
}

}  // namespace nibble::cuda::sm12x
