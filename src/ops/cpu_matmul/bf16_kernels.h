// Products of MXFP8, NVFP4 and FP8 panels (Layout::kPanels16) with activations rounded to bf16, by
// products of bf16 (cpu/bf16_products.h) on AMX or AVX-512 BF16, for machines where activations may
// be rounded. A weight without the scale of its row is exact in bf16 (E4M3 has 4 bits, E2M1 2, of
// the blocks' scales MXFP8's are powers of two and NVFP4's have 4 bits; what is below 2^-126 counts
// as zero), sums are float32.
//
//   y[m][n] = bias[n] + sum over k of w[n][k] x[m][k], in the instruction's order: the same
// whatever the batch; where rows have scales: fma(sum, scale[n], bias[n]); where blocks of 128 k
// have float32s, the sums of each begin at zero and are added up by fma. On AMX few inputs go by
// float32 multiply-adds in the tiles' order.
//
// Bytes: the weights once. Reached, nibble bench ops, out_proj of gpt-oss-20b: on 2 cores of an
// EPYC (Zen 4, AVX-512 BF16, no AMX), 2026-11-21, one token 0.40 to 0.41 ms (83 to 89% of the
// floor; FloatPanels 0.36), 8 tokens 0.77 (1.16), 512 tokens 433 GFLOP/s (166). On 2 cores of a
// Xeon with AMX (reads at 26 GB/s), 2026-11-22: one token 0.58 to 0.60 ms (66 to 71% of the floor;
// FloatPanels 0.56), 8 tokens 1.1 (1.6), 64 tokens 1,078 GFLOP/s (137), 512 tokens 1,459 (112).
// What binds: dot products of bf16, 64 flops a cycle, without AMX; looking up lines with it. Lost:
// lookups through float16 and float32 (EPYC, one token 0.57 ms), lines through memory for one token
// (EPYC 0.49, AMX 1.7) and for 4 on AMX (1.1, as for 8).
// FP8 on 2 cores of an EPYC (Zen 5), 2026-11-23, beside other work, 4,096 x 4,096: 512 tokens 740
// to 830 GFLOP/s, one token 35 GB/s: docs/lab/cpu-products.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"
#include "formats/format.h"

namespace nibble::ops {

inline constexpr int64_t kBf16Panels = 4;   // of 16 rows, that meet an input at once
inline constexpr int64_t kBf16Inputs = 16;  // that meet them at once

struct Bf16Run {
  const uint8_t *codes, *scales;  // [panels] as kPanels16 has them
  const float* row_scales;        // [16 panels], of NVFP4 and FP8
  const uint16_t* bias;           // [16 panels] or none
  int64_t panels;                 // at most kBf16Panels
  int64_t steps;                  // K / 32
  const uint16_t* x;              // bf16 [tokens, rounded up to kBf16Inputs][K]
  int64_t tokens;
  float* y;  // y[m * ldy + n]
  int64_t ldy;
  std::byte* scratch;  // bf16_run_scratch_bytes() of this worker, at 64 bytes
};
constexpr int64_t bf16_run_scratch_bytes(int64_t steps) {
  return kBf16Panels * (steps * 1024 + kBf16Inputs * 64);
}

struct Bf16Kernels {
  using Multiply = void(const Bf16Run& run);
  void (*encode)(const float* x, int64_t n, uint16_t* to);  // n: a multiple of 32
  Multiply *mxfp8, *nvfp4, *fp8_row, *fp8_block;
  Multiply* of(Format format) const {
    if (format == Format::kNvfp4) return nvfp4;
    if (format == Format::kFp8Row) return fp8_row;
    return format == Format::kFp8Block ? fp8_block : mxfp8;
  }
};

// Those of kAmx or kAvx512Bf16.
const Bf16Kernels& bf16_kernels(cpu::Isa isa);

}  // namespace nibble::ops
