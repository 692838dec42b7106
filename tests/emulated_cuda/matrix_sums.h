// What a tensor core adds up: sums of products in the arithmetic that microsoft/MMA-Sim (c785138,
// arXiv 2511.10909) found on Hopper and RTX Blackwell. All products of an instruction and the old
// sum are aligned to the largest exponent among them, cut towards zero behind so many fraction
// bits, added exactly, and the sum is cut to float32. A product's exponent is that of its factors
// (and scales), not of its value.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nibble::emulated {

inline constexpr int kZeroExponent = -126;
inline constexpr int kColumns = 8;  // at a time

inline double power_of_two(int n) {
  if (n < -1022 || n > 1023) return std::ldexp(1.0, n);
  return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

// v as float32, towards zero.
inline float towards_zero(double v) {
  if (std::fabs(v) >= 0x1p128)
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(v));
  const auto near = static_cast<float>(v);
  if (std::fabs(static_cast<double>(near)) <= std::fabs(v)) return near;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(near) - 1);
}

// The exponent of a float32 that holds a value of a format whose least normal is 2^least.
inline int exponent_of(float v, int least) {
  if (v == 0) return kZeroExponent;
  const int e = static_cast<int>(std::bit_cast<uint32_t>(v) >> 23 & 255) - 127;
  return std::max(e, least);
}

template <int kK>
struct RowsOfA {  // a row
  float values[kK];
  int32_t exponents[kK];
};
template <int kK>
struct ColumnsOfB {
  float values[kK][kColumns];
  int32_t exponents[kK][kColumns];
};

// sums[n] += a . b[:, n] 2^scales[n], cut behind kFraction bits.
template <int kK, int kFraction>
void add_products(float (&sums)[kColumns], const RowsOfA<kK>& a, const ColumnsOfB<kK>& b,
                  const int32_t (&scales)[kColumns], bool is_special) {
  int32_t most[kColumns];
  double v[kColumns], unit[kColumns];
  for (int n = 0; n < kColumns; ++n) most[n] = -100000;
  for (int k = 0; k < kK; ++k)
    for (int n = 0; n < kColumns; ++n)
      most[n] = std::max(most[n], a.exponents[k] + b.exponents[k][n]);
  for (int n = 0; n < kColumns; ++n) {
    most[n] = std::max(most[n] + scales[n], exponent_of(sums[n], kZeroExponent));
    v[n] = std::trunc(sums[n] * power_of_two(kFraction - most[n]));
    unit[n] = power_of_two(kFraction - most[n] + scales[n]);
  }
  for (int k = 0; k < kK; ++k)
    for (int n = 0; n < kColumns; ++n)
      v[n] += std::trunc(static_cast<double>(a.values[k]) * b.values[k][n] * unit[n]);
  for (int n = 0; n < kColumns; ++n) {
    if (!is_special) {
      sums[n] = towards_zero(v[n] * power_of_two(most[n] - kFraction));
      continue;
    }
    double exact = sums[n];
    for (int k = 0; k < kK; ++k)
      exact += static_cast<double>(a.values[k]) * b.values[k][n] * power_of_two(scales[n]);
    if (std::isfinite(exact))
      sums[n] = towards_zero(v[n] * power_of_two(most[n] - kFraction));
    else
      sums[n] = exact != exact ? std::bit_cast<float>(0x7fffffffu) : static_cast<float>(exact);
  }
}

// E2M1 by E2M1 with E4M3 scales of 16 each: the products of a group are summed exactly, then their
// sums are aligned behind 35 fraction bits. quarters: sums of products of twice the values; scales:
// products of the scales' significands (in eighths) and sums of their exponents.
struct ScaledGroup {
  int64_t significand;  // units of 2^-8
  int exponent;
};
inline float add_groups(float sum, const ScaledGroup (&groups)[4]) {
  constexpr int kFraction = 35;
  int most = exponent_of(sum, kZeroExponent);
  for (const ScaledGroup& g : groups) most = std::max(most, g.exponent);
  double v = std::trunc(sum * power_of_two(kFraction - most));
  for (const ScaledGroup& g : groups)
    v += std::trunc(static_cast<double>(g.significand) *
                    power_of_two(kFraction - 8 + g.exponent - most));
  return towards_zero(v * power_of_two(most - kFraction));
}

}  // namespace nibble::emulated
