// From NIBBLE_TARGET on this file may use AVX-512 with VBMI and BF16.
#include "ops/cpu_matmul/bf16_kernels.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "cpu/simd_target.h"
#include "formats/mxfp4.h"

NIBBLE_TARGET(NIBBLE_AVX512 ",avx512vbmi,avx512bf16")

#include "cpu/bf16_products.h"
#include "cpu/simd_avx512.h"

namespace nibble::ops {
namespace {

using S = cpu::Avx512;
using cpu::kTileBytes;
constexpr int64_t kAhead = 8192, kScalesAhead = kAhead / 32;  // as Fp8Panels
constexpr int64_t kFewSteps = 4;                              // that few inputs meet at a time

void encode(const float* x, int64_t n, uint16_t* to) {
  for (int64_t i = 0; i < n; i += 32)
    _mm512_storeu_si512(to + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
                                    _mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i))));
}

// MXFP8 as lines of pairs: see Bf16Operands::b. E4M3's magnitudes are looked up as bf16, 2^118 too
// large; then each row's exponent is made smaller, zero staying zero.
constexpr int kLargestScale = 127 + 118;

struct Mxfp8Tables {
  alignas(64) uint16_t magnitude[128];
  alignas(64) uint8_t twice[64];
  constexpr Mxfp8Tables() : magnitude(), twice() {
    for (int c = 0; c < 128; ++c) {
      const int exponent = c / 8, mantissa = c % 8;
      float value = exponent == 0 ? static_cast<float>(mantissa) / 8 / 64
                                  : (1 + static_cast<float>(mantissa) / 8) / 128;
      for (int i = 0; i < exponent; ++i) value *= 2;
      magnitude[c] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value * 0x1p118f) >> 16);
    }
    // Both bytes of the words of a pair: the codes of k and k + 1 of a row.
    for (int i = 0; i < 64; ++i) twice[i] = static_cast<uint8_t>(i / 4 + i / 2 % 2 * 16);
  }
};
constexpr Mxfp8Tables kMxfp8Tables;

struct Mxfp8Lines {
  __m512i tables[4], twice, sign, upper;

  __attribute__((always_inline)) Mxfp8Lines() {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) tables[i] = _mm512_load_si512(kMxfp8Tables.magnitude + 32 * i);
    twice = _mm512_load_si512(kMxfp8Tables.twice);
    sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
    upper = _mm512_set1_epi16(64);
  }
  // By how much a block's 16 rows are smaller, for k and k + 1.
  SIMD_FN __m512i smaller(const uint8_t* scales) {
    const __m512i e =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    return _mm512_slli_epi16(_mm512_sub_epi16(_mm512_set1_epi16(kLargestScale),
                                              _mm512_or_si512(e, _mm512_slli_epi32(e, 16))),
                             7);
  }
  // The codes of k and k + 1 of 16 rows: the lower byte of a word looks up the magnitude, the upper
  // has the sign in its place.
  SIMD_FN __m512i line(const Mxfp8Lines& t, const uint8_t* codes, __m512i smaller) {
    const __m512i code = _mm512_permutexvar_epi8(
        t.twice,
        _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))));
    const __m512i low = _mm512_permutex2var_epi16(t.tables[0], code, t.tables[1]);
    const __m512i high = _mm512_permutex2var_epi16(t.tables[2], code, t.tables[3]);
    const __mmask32 large = _mm512_test_epi16_mask(code, t.upper);
    const __m512i magnitude = _mm512_subs_epu16(_mm512_mask_mov_epi16(low, large, high), smaller);
    constexpr int kAndOr = 0xea;  // (a & b) | c
    return _mm512_ternarylogic_epi32(code, t.sign, magnitude, kAndOr);
  }
};

void pair_mxfp8(const uint8_t* codes, const uint8_t* scales, std::byte* to) {
  for (int i = 0; i < 8; ++i) __builtin_prefetch(codes + kAhead + 64 * i, 0, 1);
  __builtin_prefetch(scales + kScalesAhead, 0, 1);
  const Mxfp8Lines lines;
  const __m512i smaller = Mxfp8Lines::smaller(scales);
#pragma GCC unroll 4
  for (int r = 0; r < 16; ++r)
    _mm512_store_si512(to + 64 * r, Mxfp8Lines::line(lines, codes + 32 * r, smaller));
}

// The same for scales above 2^118 and NaN.
void pair_large_mxfp8(const uint8_t* codes, const uint8_t* scales, std::byte* to) {
  const __m512 scale = S::scales(scales), unit = _mm512_set1_ps(S::kE4m3Unit);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const auto bits = [&](const uint8_t* c) {
    return _mm512_castps_si512(_mm512_mul_ps(_mm512_mul_ps(S::load_e4m3(c), unit), scale));
  };
  for (int r = 0; r < 16; ++r) {
    const __m512i even = bits(codes + 32 * r), odd = bits(codes + 32 * r + 16);
    constexpr int kAndOr = 0xea;
    _mm512_store_si512(to + 64 * r,
                       _mm512_ternarylogic_epi32(odd, upper, _mm512_srli_epi32(even, 16), kAndOr));
  }
}

bool has_large(const uint8_t* scales) {
  const __m128i e = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
  return _mm_cmpgt_epu8_mask(e, _mm_set1_epi8(static_cast<char>(kLargestScale))) != 0;
}

// Steps [first, first + steps) of a panel.
void pair_panel(const Bf16Run& run, int64_t panel, int64_t first, int64_t steps, std::byte* lines) {
  for (int64_t s = first; s < first + steps; ++s, lines += kTileBytes) {
    const int64_t block = panel * run.steps + s;
    if (has_large(run.scales + 16 * block))
      pair_large_mxfp8(run.codes + 512 * block, run.scales + 16 * block, lines);
    else
      pair_mxfp8(run.codes + 512 * block, run.scales + 16 * block, lines);
  }
}

// The sums of 16 inputs from `first` on and `steps` steps of lines; where kFresh, from zero.
template <typename Products, bool kFresh>
void add_steps(const Bf16Run& run, int64_t first, int64_t step, int64_t steps,
               const std::byte* lines, float* sums) {
  // Columns of panels that are not there go nowhere.
  Products::template multiply<kBf16Panels, kFresh>(
      {.a = reinterpret_cast<const std::byte*>(run.x + first * 32 * run.steps) + 64 * step,
       .a_row = 64 * run.steps,
       .b = lines,
       .b_block = steps * kTileBytes,
       .c = sums,
       .c_row = 16 * kBf16Panels,
       .steps = steps,
       .rows = static_cast<int>(std::min(kBf16Inputs, run.tokens - first))});
}

void finish(const Bf16Run& run, int64_t first, const float* sums) {
  for (int64_t m = 0; m < std::min(kBf16Inputs, run.tokens - first); ++m)
    for (int64_t p = 0; p < run.panels; ++p) {
      const __m512 bias = run.bias == nullptr ? S::zero() : S::load_bf16(run.bias + 16 * p);
      S::store(run.y + (first + m) * run.ldy + 16 * p,
               S::add(S::load(sums + 16 * (m * kBf16Panels + p)), bias));
    }
}

// One input by panels whose scales are not large: lines go from registers into the products,
// in the order of Avx512Bf16.
void multiply_few(cpu::Avx512Bf16, const Bf16Run& run) {
  const Mxfp8Lines lines;
  for (int64_t p = 0; p < run.panels; p += 2) {
    const int64_t other = std::min(p + 1, run.panels - 1);
    __m512 acc[2] = {S::zero(), S::zero()};
    for (int64_t s = 0; s < run.steps; ++s) {
      const uint8_t *codes[2], *scales[2];
      __m512i smaller[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const int64_t block = (i == 0 ? p : other) * run.steps + s;
        codes[i] = run.codes + 512 * block, scales[i] = run.scales + 16 * block;
        for (int j = 0; j < 8; ++j) __builtin_prefetch(codes[i] + kAhead + 64 * j, 0, 1);
        __builtin_prefetch(scales[i] + kScalesAhead, 0, 1);
        smaller[i] = Mxfp8Lines::smaller(scales[i]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < 16; ++r) {
        int32_t two;
        __builtin_memcpy(&two, run.x + 32 * s + 2 * r, sizeof(two));
        const __m512i x = _mm512_set1_epi32(two);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
          acc[i] = _mm512_dpbf16_ps(
              acc[i], reinterpret_cast<__m512bh>(x),
              reinterpret_cast<__m512bh>(Mxfp8Lines::line(lines, codes[i] + 32 * r, smaller[i])));
      }
    }
    for (int i = 0; i < 2 && p + i < run.panels; ++i) {
      const __m512 bias = run.bias == nullptr ? S::zero() : S::load_bf16(run.bias + 16 * (p + i));
      S::store(run.y + 16 * (p + i), S::add(acc[i], bias));
    }
  }
}

// M inputs by a panel without lines, in the order of AmxBf16: a tile adds up the products of even
// and of odd k by themselves, then both to what there was. A block is a step, so that its scale
// waits until then; a power of two, it changes no rounding.
template <int M>
void multiply_few(const Bf16Run& run, int64_t panel) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const uint8_t *codes = run.codes + 512 * panel * run.steps,
                *scales = run.scales + 16 * panel * run.steps;
  __m512 acc[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) acc[m] = S::zero();
  for (int64_t s = 0; s < run.steps; ++s, codes += 512, scales += 16) {
    for (int i = 0; i < 8; ++i) __builtin_prefetch(codes + kAhead + 64 * i, 0, 1);
    if (s % 4 == 0) __builtin_prefetch(scales + kScalesAhead, 0, 1);
    __m512 even[M], odd[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) even[m] = odd[m] = S::zero();
#pragma GCC unroll 4
    for (int r = 0; r < 16; ++r) {
      const __m512 first = S::load_e4m3(codes + 32 * r), second = S::load_e4m3(codes + 32 * r + 16);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        int32_t two;
        __builtin_memcpy(&two, run.x + 32 * (m * run.steps + s) + 2 * r, sizeof(two));
        const __m512i pair = _mm512_set1_epi32(two);
        even[m] = S::fma(first, _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), even[m]);
        odd[m] = S::fma(second, _mm512_castsi512_ps(_mm512_and_si512(pair, upper)), odd[m]);
      }
    }
    const __m512 scale = S::mul(S::scales(scales), S::set1(S::kE4m3Unit));
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) acc[m] = S::fma(scale, S::add(even[m], odd[m]), acc[m]);
  }
  const __m512 bias = run.bias == nullptr ? S::zero() : S::load_bf16(run.bias + 16 * panel);
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) S::store(run.y + m * run.ldy + 16 * panel, S::add(acc[m], bias));
}

void multiply_few(cpu::AmxBf16, const Bf16Run& run) {
  for (int64_t p = 0; p < run.panels; ++p) {
    if (run.tokens == 1) multiply_few<1>(run, p);
    if (run.tokens == 2) multiply_few<2>(run, p);
    if (run.tokens == 3) multiply_few<3>(run, p);
    if (run.tokens == 4) multiply_few<4>(run, p);
  }
}

// Inputs that go without lines.
constexpr int64_t few(cpu::Avx512Bf16) { return 1; }
constexpr int64_t few(cpu::AmxBf16) { return 4; }

bool any_large(const Bf16Run& run) {
  for (int64_t b = 0; b < run.panels * run.steps; ++b)
    if (has_large(run.scales + 16 * b)) return true;
  return false;
}

template <typename Products>
void multiply(const Bf16Run& run) {
  CHECK(run.panels <= kBf16Panels);
  if (run.tokens <= few(Products()) && !any_large(run)) return multiply_few(Products(), run);
  Products::begin();
  std::byte* lines = run.scratch;
  auto* sums = reinterpret_cast<float*>(lines + kBf16Panels * run.steps * kTileBytes);
  // Inputs of one pass: few steps at a time, whose lines stay in L1.
  const int64_t most = run.tokens <= kBf16Inputs ? kFewSteps : run.steps;
  for (int64_t step = 0, steps; step < run.steps; step += steps) {
    steps = std::min(most, run.steps - step);
    for (int64_t p = 0; p < run.panels; ++p)
      pair_panel(run, p, step, steps, lines + p * steps * kTileBytes);
    for (int64_t first = 0; first < run.tokens; first += kBf16Inputs) {
      if (step == 0)
        add_steps<Products, true>(run, first, step, steps, lines, sums);
      else
        add_steps<Products, false>(run, first, step, steps, lines, sums);
      if (step + steps == run.steps) finish(run, first, sums);
    }
  }
  Products::end();
}

}  // namespace

const Bf16Kernels& bf16_kernels(cpu::Isa isa) {
  static constexpr Bf16Kernels kAmx{encode, multiply<cpu::AmxBf16>};
  static constexpr Bf16Kernels kAvx512{encode, multiply<cpu::Avx512Bf16>};
  CHECK(isa == cpu::Isa::kAmx || isa == cpu::Isa::kAvx512Bf16);
  return isa == cpu::Isa::kAmx ? kAmx : kAvx512;
}

}  // namespace nibble::ops

NIBBLE_TARGET_END

#else  // not x86-64

namespace nibble::ops {
const Bf16Kernels& bf16_kernels(cpu::Isa) {
  CHECK(!"no AVX-512 on this architecture");
  __builtin_unreachable();
}
}  // namespace nibble::ops

#endif
