// From NIBBLE_TARGET on this file may use AVX-512 with VBMI and BF16.
#include "ops/cpu_matmul/bf16_kernels.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <bit>

#include "cpu/simd_target.h"
#include "formats/fp8_block.h"
#include "formats/mxfp4.h"

NIBBLE_TARGET(NIBBLE_AVX512 ",avx512vbmi,avx512bf16")

#include "cpu/bf16_products.h"
#include "cpu/simd_avx512.h"

namespace nibble::ops {
namespace {

using S = cpu::Avx512;
using cpu::kTileBytes;
constexpr int64_t kAhead = 8192;  // as FloatPanels
constexpr int64_t kFewSteps = 4;  // that few inputs meet at a time

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

// NVFP4 as such lines, each weight times the scale of its block.
void pair_nvfp4(const uint8_t* codes, const uint8_t* scales, std::byte* to) {
  const __m512 unit = S::set1(S::kE2m1Unit * S::kE4m3Unit);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m512 w[8];
    S::load_e2m1(codes + 64 * i, w);
    const __m512 scale = S::mul(S::load_e4m3(scales + i / 2 * 16), unit);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j += 2) {
      const __m512i even = _mm512_castps_si512(S::mul(w[j], scale)),
                    odd = _mm512_castps_si512(S::mul(w[j + 1], scale));
      constexpr int kAndOr = 0xea;
      _mm512_store_si512(
          to + 64 * (4 * i + j / 2),
          _mm512_ternarylogic_epi32(odd, upper, _mm512_srli_epi32(even, 16), kAndOr));
    }
  }
}

// FP8 as MXFP8: its scales come later.
constexpr uint8_t kNoScales[16] = {127, 127, 127, 127, 127, 127, 127, 127,
                                   127, 127, 127, 127, 127, 127, 127, 127};

constexpr bool is_fp8(Format format) {
  return format == Format::kFp8Row || format == Format::kFp8Block;
}

// A step of a panel.
template <Format kFormat>
struct Block {
  static constexpr int64_t kCodeBytes = kFormat == Format::kNvfp4 ? 256 : 512;
  static constexpr int64_t kScaleBytes = kFormat == Format::kNvfp4 ? 32 : 16;
  const uint8_t *codes, *scales;
  Block(const Bf16Run& run, int64_t panel, int64_t step) {
    const int64_t at = panel * run.steps + step;
    codes = run.codes + kCodeBytes * at;
    if constexpr (is_fp8(kFormat))
      scales = kNoScales;
    else
      scales = run.scales + kScaleBytes * at;
  }
  void fetch() const {
    for (int i = 0; i < kCodeBytes; i += 64) __builtin_prefetch(codes + kAhead + i, 0, 1);
    if constexpr (!is_fp8(kFormat))
      __builtin_prefetch(scales + kAhead / kCodeBytes * kScaleBytes, 0, 1);
  }
};

// Steps whose sums begin at zero and are then multiplied by a scale of their own: FP8's with scales
// of blocks. 0: there are none such.
constexpr int64_t steps_of_block(Format format) {
  return format == Format::kFp8Block ? kFp8BlockElems / 32 : 0;
}
// That scale, of the rows of a panel.
SIMD_FN __m512 block_scales(const Bf16Run& run, int64_t panel, int64_t step) {
  const int64_t blocks = (32 * run.steps + kFp8BlockElems - 1) / kFp8BlockElems;
  const auto* scales = reinterpret_cast<const float*>(run.scales);
  return S::load(scales + 16 * (panel * blocks + 32 * step / kFp8BlockElems));
}
// Behind step `step` of few inputs: where a block ends, its sum goes to their total.
template <Format kFormat>
SIMD_FN void end_step(const Bf16Run& run, int64_t panel, int64_t step, __m512& sum, __m512& total) {
  if constexpr (steps_of_block(kFormat) > 0) {
    if ((step + 1) % steps_of_block(kFormat) != 0 && step + 1 < run.steps) return;
    total = S::fma(block_scales(run, panel, step), sum, total);
    sum = S::zero();
  }
}

// Steps [first, first + steps) of a panel.
template <Format kFormat>
void pair_panel(const Bf16Run& run, int64_t panel, int64_t first, int64_t steps, std::byte* lines) {
  for (int64_t s = first; s < first + steps; ++s, lines += kTileBytes) {
    const Block<kFormat> block(run, panel, s);
    block.fetch();
    if constexpr (kFormat == Format::kNvfp4)
      pair_nvfp4(block.codes, block.scales, lines);
    else if (kFormat == Format::kMxfp8 && has_large(block.scales))
      pair_large_mxfp8(block.codes, block.scales, lines);
    else
      pair_mxfp8(block.codes, block.scales, lines);
  }
}

// The sums of 16 inputs from `first` on and `steps` steps of lines; where kFresh, from zero.
template <typename Products, bool kFresh>
void add_steps(const Bf16Run& run, int64_t first, int64_t step, int64_t steps,
               const std::byte* lines, int64_t panel_bytes, float* sums) {
  // Columns of panels that are not there go nowhere.
  Products::template multiply<kBf16Panels, kFresh>(
      {.a = reinterpret_cast<const std::byte*>(run.x + first * 32 * run.steps) + 64 * step,
       .a_row = 64 * run.steps,
       .b = lines,
       .b_block = panel_bytes,
       .c = sums,
       .c_row = 16 * kBf16Panels,
       .steps = steps,
       .rows = static_cast<int>(std::min(kBf16Inputs, run.tokens - first))});
}

// y of input `m` by a panel, from their sums.
template <Format kFormat>
void finish(const Bf16Run& run, int64_t m, int64_t panel, __m512 sum) {
  const __m512 bias = run.bias == nullptr ? S::zero() : S::load_bf16(run.bias + 16 * panel);
  float* y = run.y + m * run.ldy + 16 * panel;
  if constexpr (kFormat == Format::kMxfp8 || kFormat == Format::kFp8Block)
    S::store(y, S::add(sum, bias));
  else
    S::store(y, S::fma(sum, S::load(run.row_scales + 16 * panel), bias));
}

template <Format kFormat>
void finish_all(const Bf16Run& run, int64_t first, const float* sums) {
  for (int64_t m = 0; m < std::min(kBf16Inputs, run.tokens - first); ++m)
    for (int64_t p = 0; p < run.panels; ++p)
      finish<kFormat>(run, first + m, p, S::load(sums + 16 * (m * kBf16Panels + p)));
}

// One input by panels whose scales are not large: lines go from registers into the products,
// in the order of Avx512Bf16.
template <Format kFormat>
void multiply_few(cpu::Avx512Bf16, const Bf16Run& run) {
  const Mxfp8Lines lines;
  for (int64_t p = 0; p < run.panels; p += 2) {
    const int64_t other = std::min(p + 1, run.panels - 1);
    __m512 acc[2] = {S::zero(), S::zero()}, total[2] = {S::zero(), S::zero()};
    for (int64_t s = 0; s < run.steps; ++s) {
      const Block<kFormat> blocks[2] = {{run, p, s}, {run, other, s}};
      __m512i smaller[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        blocks[i].fetch();
        smaller[i] = Mxfp8Lines::smaller(blocks[i].scales);
      }
#pragma GCC unroll 4
      for (int r = 0; r < 16; ++r) {
        int32_t two;
        __builtin_memcpy(&two, run.x + 32 * s + 2 * r, sizeof(two));
        const __m512i x = _mm512_set1_epi32(two);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
          acc[i] = _mm512_dpbf16_ps(acc[i], reinterpret_cast<__m512bh>(x),
                                    reinterpret_cast<__m512bh>(Mxfp8Lines::line(
                                        lines, blocks[i].codes + 32 * r, smaller[i])));
      }
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) end_step<kFormat>(run, i == 0 ? p : other, s, acc[i], total[i]);
    }
    for (int i = 0; i < 2 && p + i < run.panels; ++i)
      finish<kFormat>(run, 0, p + i, steps_of_block(kFormat) == 0 ? acc[i] : total[i]);
  }
}

// Weights of 8 k from 8 `line` on; what is not yet multiplied in is scale_of().
template <Format kFormat>
SIMD_FN void load_weights(const Block<kFormat>& block, int line, __m512* w) {
  if constexpr (kFormat == Format::kNvfp4) {
    const __m512 scale = S::load_e4m3(block.scales + line / 2 * 16);
    S::load_e2m1(block.codes + 64 * line, w);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) w[j] = S::mul(w[j], scale);
  } else {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) w[j] = S::load_e4m3(block.codes + 16 * (8 * line + j));
  }
}
// A power of two.
template <Format kFormat>
SIMD_FN __m512 scale_of(const Block<kFormat>& block) {
  const __m512 unit = S::set1(S::kE4m3Unit);
  return kFormat == Format::kMxfp8 ? S::mul(S::scales(block.scales), unit) : unit;
}

// M inputs `x` [M][K] by a panel without lines, in the order of AmxBf16: a tile adds up the
// products of even and of odd k by themselves, then both to what there was. What is left of the
// scale waits until then; a power of two, it changes no rounding.
template <Format kFormat, int M>
void multiply_few(const Bf16Run& run, int64_t panel, const float* x) {
  __m512 acc[M], total[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) acc[m] = total[m] = S::zero();
  for (int64_t s = 0; s < run.steps; ++s, x += 32) {
    const Block<kFormat> block(run, panel, s);
    block.fetch();
    __m512 even[M], odd[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) even[m] = odd[m] = S::zero();
#pragma GCC unroll 4
    for (int line = 0; line < 4; ++line) {
      __m512 w[8];
      load_weights(block, line, w);
#pragma GCC unroll 4
      for (int j = 0; j < 8; j += 2)
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          const float* two = x + m * 32 * run.steps + 8 * line + j;
          even[m] = S::fma(w[j], S::set1(two[0]), even[m]);
          odd[m] = S::fma(w[j + 1], S::set1(two[1]), odd[m]);
        }
    }
    const __m512 scale = scale_of(block);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      acc[m] = S::fma(scale, S::add(even[m], odd[m]), acc[m]);
      end_step<kFormat>(run, panel, s, acc[m], total[m]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m)
    finish<kFormat>(run, m, panel, steps_of_block(kFormat) == 0 ? acc[m] : total[m]);
}

template <Format kFormat>
void multiply_few(cpu::AmxBf16, const Bf16Run& run) {
  auto* x = reinterpret_cast<float*>(run.scratch);
  for (int64_t i = 0; i < run.tokens * 32 * run.steps; i += 16)
    S::store(x + i, S::load_bf16(run.x + i));
  for (int64_t p = 0; p < run.panels; ++p) {
    if (run.tokens == 1) multiply_few<kFormat, 1>(run, p, x);
    if (run.tokens == 2) multiply_few<kFormat, 2>(run, p, x);
    if (run.tokens == 3) multiply_few<kFormat, 3>(run, p, x);
    if (run.tokens == 4) multiply_few<kFormat, 4>(run, p, x);
  }
}

// Inputs that go without lines.
template <Format kFormat>
constexpr int64_t few(cpu::Avx512Bf16) {
  return kFormat == Format::kNvfp4 ? 0 : 1;
}
template <Format kFormat>
constexpr int64_t few(cpu::AmxBf16) {
  return 4;
}

template <Format kFormat>
bool any_large(const Bf16Run& run) {
  if constexpr (kFormat == Format::kMxfp8)
    for (int64_t b = 0; b < run.panels * run.steps; ++b)
      if (has_large(run.scales + 16 * b)) return true;
  return false;
}

// The same as add_steps() of all steps, block by block: the sums of each times its scales, added
// up.
template <typename Products, Format kFormat>
void add_blocks(const Bf16Run& run, int64_t first, const std::byte* lines, float* sums) {
  constexpr int64_t kSums = kBf16Inputs * kBf16Panels;
  alignas(64) float block[16 * kSums];
  std::fill_n(sums, 16 * kSums, 0.f);
  for (int64_t step = 0; step < run.steps; step += steps_of_block(kFormat)) {
    const int64_t steps = std::min(steps_of_block(kFormat), run.steps - step);
    add_steps<Products, true>(run, first, step, steps, lines + step * kTileBytes,
                              run.steps * kTileBytes, block);
    for (int64_t p = 0; p < run.panels; ++p) {
      const __m512 scale = block_scales(run, p, step);
      for (int64_t m = 0; m < std::min(kBf16Inputs, run.tokens - first); ++m) {
        const int64_t at = 16 * (m * kBf16Panels + p);
        S::store(sums + at, S::fma(scale, S::load(block + at), S::load(sums + at)));
      }
    }
  }
}

template <typename Products, Format kFormat>
void multiply(const Bf16Run& run) {
  CHECK(run.panels <= kBf16Panels);
  if (run.tokens <= few<kFormat>(Products()) && !any_large<kFormat>(run))
    return multiply_few<kFormat>(Products(), run);
  Products::begin();
  std::byte* lines = run.scratch;
  auto* sums = reinterpret_cast<float*>(lines + kBf16Panels * run.steps * kTileBytes);
  // Inputs of one pass: few steps at a time, whose lines stay in L1.
  constexpr int64_t kBlock = steps_of_block(kFormat);
  const int64_t most = run.tokens <= kBf16Inputs && kBlock == 0 ? kFewSteps : run.steps;
  for (int64_t step = 0, steps; step < run.steps; step += steps) {
    steps = std::min(most, run.steps - step);
    for (int64_t p = 0; p < run.panels; ++p)
      pair_panel<kFormat>(run, p, step, steps, lines + p * steps * kTileBytes);
    for (int64_t first = 0; first < run.tokens; first += kBf16Inputs) {
      if constexpr (kBlock > 0)
        add_blocks<Products, kFormat>(run, first, lines, sums);
      else if (step == 0)
        add_steps<Products, true>(run, first, step, steps, lines, steps * kTileBytes, sums);
      else
        add_steps<Products, false>(run, first, step, steps, lines, steps * kTileBytes, sums);
      if (step + steps == run.steps) finish_all<kFormat>(run, first, sums);
    }
  }
  Products::end();
}

template <typename Products>
constexpr Bf16Kernels kernels_of() {
  return {.encode = encode,
          .mxfp8 = multiply<Products, Format::kMxfp8>,
          .nvfp4 = multiply<Products, Format::kNvfp4>,
          .fp8_row = multiply<Products, Format::kFp8Row>,
          .fp8_block = multiply<Products, Format::kFp8Block>};
}

}  // namespace

const Bf16Kernels& bf16_kernels(cpu::Isa isa) {
  static constexpr Bf16Kernels kAmx = kernels_of<cpu::AmxBf16>();
  static constexpr Bf16Kernels kAvx512 = kernels_of<cpu::Avx512Bf16>();
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
