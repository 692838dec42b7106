// From NIBBLE_TARGET on this file may use AVX-512 with BF16; tiles are
// written as assembly and need no flag.
#include "ops/cpu_matmul/bf16_row_kernels.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>

#include "cpu/simd_target.h"
#include "formats/mxfp4.h"

NIBBLE_TARGET(NIBBLE_AVX512 ",avx512bf16")

#include "cpu/amx_tiles.h"
#include "cpu/simd_avx512.h"

namespace nibble::ops {
namespace {

using S = cpu::Avx512;
using T = cpu::AmxTiles;
using cpu::kTileBytes;
using cpu::kTileRows;
constexpr int64_t kBeside = 2 * kTileRows;  // rows of weights that meet inputs at once
constexpr int64_t kStepsAhead = 16;         // of 64 bytes in each row, that come into L2

void turn(const float* const* x, int64_t tokens, int64_t steps, std::byte* to) {
  for (int64_t s = 0; s < steps; ++s, to += kTileBytes) {
    __m512 lines[16];
    for (int m = 0; m < 16; ++m)
      lines[m] = m < tokens
                     ? _mm512_castsi512_ps(reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
                           _mm512_loadu_ps(x[m] + 32 * s + 16), _mm512_loadu_ps(x[m] + 32 * s))))
                     : S::zero();
    S::transpose(lines);
    for (int r = 0; r < 16; ++r) _mm512_storeu_ps(to + 64 * r, lines[r]);
  }
}

// y of 16 rows from `row` on and up to 16 inputs from `first` on, from their sums [row][input].
void finish(const Bf16RowRun& run, int64_t row, int64_t first, const float* sums) {
  __m512 lines[16];
  for (int i = 0; i < 16; ++i) lines[i] = _mm512_load_ps(sums + 16 * i);
  S::transpose(lines);
  const __m512 bias = run.bias == nullptr ? S::zero() : S::load_bf16(run.bias + row);
  const int64_t tokens = std::min(kTurnedInputs, run.tokens - first);
  for (int64_t m = 0; m < tokens; ++m)
    S::store(run.y + (first + m) * run.ldy + row, S::add(lines[m], bias));
}

// Has step `step` of the rows from `row` on come into L2, or, past their end, of those behind them.
void fetch(const Bf16RowRun& run, int64_t row, int64_t step) {
  if (step >= run.steps) step -= run.steps, row += kBeside;
  const uint16_t* at = run.w + row * 32 * run.steps + 32 * step;
  for (int i = 0; i < kBeside; ++i) __builtin_prefetch(at + i * 32 * run.steps, 0, 1);
}

// kBeside rows from `row` on by kTiles tiles of inputs. The last 16 rows meet them twice where
// there is no second tile of rows.
template <int kTiles>
void multiply(const Bf16RowRun& run, int64_t row, int64_t tile) {
  const int64_t row_bytes = 64 * run.steps;
  const auto* a = reinterpret_cast<const std::byte*>(run.w) + row * row_bytes;
  const std::byte* a1 = row + kTileRows < run.rows ? a + kTileRows * row_bytes : a;
  const std::byte* b = run.x + tile * run.steps * kTileBytes;
  const std::byte* b1 = b + run.steps * kTileBytes;
  T::zero<0>(), T::zero<1>();
  if constexpr (kTiles == 2) T::zero<2>(), T::zero<3>();
  for (int64_t s = 0; s < run.steps; ++s) {
    if (tile == 0) fetch(run, row, s + kStepsAhead);
    T::load<6>(b + s * kTileBytes);
    T::load<4>(a + 64 * s, row_bytes), T::dot_bf16<0, 4, 6>();
    T::load<5>(a1 + 64 * s, row_bytes), T::dot_bf16<1, 5, 6>();
    if constexpr (kTiles == 2) {
      T::load<7>(b1 + s * kTileBytes);
      T::dot_bf16<2, 4, 7>(), T::dot_bf16<3, 5, 7>();
    }
  }
  alignas(64) float sums[4][16 * 16];
  T::store<0>(sums[0]), T::store<1>(sums[1]);
  if constexpr (kTiles == 2) T::store<2>(sums[2]), T::store<3>(sums[3]);
  for (int i = 0; i < 2 * kTiles; ++i)
    if (row + i % 2 * kTileRows < run.rows)
      finish(run, row + i % 2 * kTileRows, (tile + i / 2) * kTurnedInputs, sums[i]);
}

void multiply(const Bf16RowRun& run) {
  const int64_t tiles = (run.tokens + kTurnedInputs - 1) / kTurnedInputs;
  T::begin();
  for (int64_t row = 0; row < run.rows; row += kBeside) {
    int64_t tile = 0;
    for (; tile + 2 <= tiles; tile += 2) multiply<2>(run, row, tile);
    if (tile < tiles) multiply<1>(run, row, tile);
  }
  T::end();
}

}  // namespace

const Bf16RowKernels& bf16_row_kernels(cpu::Isa isa) {
  static constexpr Bf16RowKernels kAmx{turn, multiply};
  CHECK(isa == cpu::Isa::kAmx || isa == cpu::Isa::kAvx512Bf16);
  return isa == cpu::Isa::kAmx ? kAmx : bf16_row_kernels_avx512();
}

}  // namespace nibble::ops

NIBBLE_TARGET_END

#else  // not x86-64

namespace nibble::ops {
const Bf16RowKernels& bf16_row_kernels(cpu::Isa) {
  CHECK(!"no AVX-512 on this architecture");
  __builtin_unreachable();
}
}  // namespace nibble::ops

#endif
