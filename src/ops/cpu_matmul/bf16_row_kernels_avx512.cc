// From NIBBLE_TARGET on this file may use AVX-512 with BF16.
#include "ops/cpu_matmul/bf16_row_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>

#include "cpu/simd_target.h"
#include "formats/bf16.h"
#include "formats/mxfp4.h"

NIBBLE_TARGET(NIBBLE_AVX512 ",avx512bf16")

#include "cpu/simd_avx512.h"

namespace nibble::ops {
namespace {

using S = cpu::Avx512;
constexpr int kSums = 16;              // of rows by inputs, in registers at once
constexpr int64_t kInputs = 4;         // the most of them
constexpr int64_t kLineBytes = 64;     // 32 k of an input or a row
constexpr int64_t kShortRow = 2048;    // the most k of four rows that wait in L1
constexpr int64_t kStepsOfBlock = 64;  // four inputs' lines of so many stay in L1

// In groups of kInputs, [steps][kInputs][32] each.
void turn(const float* const* x, int64_t tokens, int64_t steps, std::byte* to) {
  for (int64_t m = 0; m < kTurnedInputs; ++m) {
    std::byte* at = to + (m / kInputs * steps * kInputs + m % kInputs) * kLineBytes;
    for (int64_t s = 0; s < steps; ++s, at += kInputs * kLineBytes) {
      const auto pair = [&](int64_t k) {
        return m < tokens ? _mm512_loadu_ps(x[m] + 32 * s + k) : S::zero();
      };
      _mm512_storeu_si512(at, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(pair(16), pair(0))));
    }
  }
}

// Lane i: the sum over all lanes of v[i], in one order for each.
SIMD_FN __m512 sums_of(__m512* v) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    v[i] = S::add(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                  _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    v[i] = S::add(_mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0x44),
                  _mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0xee));
#pragma GCC unroll 3
  for (int pairs = 2; pairs > 0; pairs /= 2)
#pragma GCC unroll 2
    for (int i = 0; i < pairs; ++i)
      v[i] = S::add(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x88),
                    _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xdd));
  return v[0];
}

// Has step `step` of the kR rows from w on come nearer: into L1, where short rows wait for the few
// steps until they are met, else into L2.
template <int kR>
SIMD_FN void fetch(const uint16_t* w, int64_t cols, int64_t step) {
  const uint16_t* at = w + 32 * step;
  if (cols <= kShortRow)
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) __builtin_prefetch(at + r * cols, 0, 3);
  else
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) __builtin_prefetch(at + r * cols, 0, 2);
}

// kR rows from `row` on by kM inputs from `first` on, over the blocks of steps [begin, end). What
// the first inputs meet comes from memory: the rows behind are fetched. For one input the hardware
// is faster by itself, as nothing but rows is read.
template <int kR, int kM>
void multiply(const Bf16RowRun& run, int64_t row, int64_t first, int64_t begin, int64_t end) {
  static_assert(kR * kM == kSums && kM <= kInputs);
  const int64_t cols = 32 * run.steps, inputs = std::min<int64_t>(kM, run.tokens - first);
  const uint16_t* w = run.w + row * cols;
  const std::byte* x = run.x + first * run.steps * kLineBytes;
  float* y = run.y + first * run.ldy + row;
  alignas(64) float sums[kSums] = {};
  for (int64_t m = 0; m < inputs; ++m)
    for (int r = 0; r < kR; ++r)
      if (begin > 0)
        sums[m * kR + r] = y[m * run.ldy + r];
      else if (run.bias != nullptr)
        sums[m * kR + r] = bf16_to_float(run.bias[row + r]);
  __m512 total = S::load(sums);
  for (int64_t s = begin; s < end;) {
    __m512 acc[kSums];
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) acc[i] = S::zero();
    for (const int64_t block = std::min(s + kStepsOfBlock, end); s < block; ++s) {
      if constexpr (kM > 1)
        if (first == 0) fetch<kR>(w + kR * cols, cols, s);
      __m512bh line[kR];
#pragma GCC unroll 16
      for (int r = 0; r < kR; ++r)
        line[r] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(w + r * cols + 32 * s));
#pragma GCC unroll 4
      for (int m = 0; m < kM; ++m) {
        const auto xm =
            reinterpret_cast<__m512bh>(_mm512_loadu_si512(x + (s * kInputs + m) * kLineBytes));
#pragma GCC unroll 16
        for (int r = 0; r < kR; ++r)
          acc[m * kR + r] = _mm512_dpbf16_ps(acc[m * kR + r], xm, line[r]);
      }
    }
    total = S::add(total, sums_of(acc));
  }
  S::store(sums, total);
  for (int64_t m = 0; m < inputs; ++m) std::copy_n(sums + m * kR, kR, y + m * run.ldy);
}

// All rows by up to kInputs inputs.
void multiply_few(const Bf16RowRun& run, int64_t first, int64_t begin, int64_t end) {
  const int64_t inputs = run.tokens - first;
  if (inputs == 1)
    for (int64_t row = 0; row < run.rows; row += 16) multiply<16, 1>(run, row, first, begin, end);
  else if (inputs == 2)
    for (int64_t row = 0; row < run.rows; row += 8) multiply<8, 2>(run, row, first, begin, end);
  else
    for (int64_t row = 0; row < run.rows; row += 4) multiply<4, 4>(run, row, first, begin, end);
}

void multiply(const Bf16RowRun& run) {
  if (run.tokens <= kInputs) return multiply_few(run, 0, 0, run.steps);
  // Each block of the rows waits in L2 for the inputs, four at a time.
  for (int64_t begin = 0; begin < run.steps; begin += kStepsOfBlock)
    for (int64_t first = 0; first < run.tokens; first += kInputs)
      multiply_few(run, first, begin, std::min(begin + kStepsOfBlock, run.steps));
}

}  // namespace

const Bf16RowKernels& bf16_row_kernels_avx512() {
  static constexpr Bf16RowKernels kKernels{turn, multiply};
  return kKernels;
}

}  // namespace nibble::ops

NIBBLE_TARGET_END

#endif
