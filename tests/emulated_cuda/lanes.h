// Operations on 32 lanes at once: values of type T lie in words of 32 bits, or of 64 for types of 8
// bytes; what a lane that is masked out has stays as it is.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <bit>
#include <cstdint>
#include <type_traits>

#include "machine.h"

namespace nibble::emulated {

template <typename T>
using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <typename T>
inline T value_of(Word<T> w) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>)
    return std::bit_cast<T>(w);
  else
    return static_cast<T>(w);
}
template <typename T>
inline Word<T> word_of(T v) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>)
    return std::bit_cast<Word<T>>(v);
  else if constexpr (std::is_signed_v<T>)
    return static_cast<Word<T>>(static_cast<std::make_unsigned_t<T>>(v));
  else
    return static_cast<Word<T>>(v);
}

// d[i] = f(i) in the lanes of the mask.
template <typename T, typename F>
inline void store_lanes(Warp& w, Place place, F f) {
  auto* d = w.at<Word<T>>(place);
  if (w.mask == kAllLanes) {
#pragma GCC ivdep
    for (int i = 0; i < kLanes; ++i) d[i] = word_of<T>(f(i));
  } else {
    const uint32_t mask = w.mask;
#pragma GCC ivdep
    for (int i = 0; i < kLanes; ++i) {
      const Word<T> v = word_of<T>(f(i));
      d[i] = (mask >> i & 1) != 0 ? v : d[i];
    }
  }
}

// The same, a lane at a time: for what has side effects or is slow.
template <typename T, typename F>
inline void store_each(Warp& w, Place place, F f) {
  auto* d = w.at<Word<T>>(place);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    d[i] = word_of<T>(f(i));
  }
}

template <typename T>
struct Lane {  // an operand
  const Word<T>* words;
  Lane(const Warp& w, Place p) : words(w.at<Word<T>>(p)) {}
  T operator[](int i) const { return value_of<T>(words[i]); }
};

// Bit i: words[i] != 0.
inline uint32_t bits_of_lanes(const uint32_t (&words)[kLanes]) {
  uint32_t bits = 0;
#ifdef __AVX2__
  for (int i = 0; i < kLanes; i += 8) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + i));
    const __m256i is_zero = _mm256_cmpeq_epi32(v, _mm256_setzero_si256());
    bits |= (~static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(is_zero))) & 255u) << i;
  }
#else
  for (int i = 0; i < kLanes; ++i) bits |= (words[i] != 0 ? 1u : 0u) << i;
#endif
  return bits;
}
template <typename F>
inline uint32_t ask_lanes(F f) {
  uint32_t words[kLanes];
#pragma GCC ivdep
  for (int i = 0; i < kLanes; ++i) words[i] = f(i) ? 1 : 0;
  return bits_of_lanes(words);
}
inline void store_predicate(Warp& w, Place place, uint32_t bits) {
  uint32_t& p = w.predicate(place);
  p = (p & ~w.mask) | (bits & w.mask);
}

template <typename T, typename Op>
void unary(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a);
  store_lanes<T>(w, in.d, [&](int i) { return Op::of(a[i]); });
}
template <typename T, typename Op>
void binary(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a), b(w, in.b);
  store_lanes<T>(w, in.d, [&](int i) { return Op::of(a[i], b[i]); });
}
template <typename T, typename Op>
void ternary(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a), b(w, in.b), c(w, in.c);
  store_lanes<T>(w, in.d, [&](int i) { return Op::of(a[i], b[i], c[i]); });
}

}  // namespace nibble::emulated
