// Products of MXFP4 panels (Layout::kPanels16) with int8 activations of one step per vector, on AMX
// or AVX-512 VNNI: a row of weights is a row of whole numbers too, 2 e2m1 << (e - base), where the
// exponents e of its blocks lie within 3 of the least, its base. Then nothing is scaled inside the
// sum:
//
//   y[m][n] = fma(sum over k of (2 e2m1 << (e - base)) q[m][k], 2^(base[n] - 127) * (step[m] / 2),
//                 bias[n])
// The sum is exact, so few vectors may go another way (VNNI, straight from the nibbles) and have
// the same bits. A row of wider exponents takes more passes, each over the blocks whose exponents
// lie within 3 of a base of its own, the others counting as zero: each pass is exact and adds to y
// by one fma. count_wide_panels() says how many panels a weight has that need it. Up to `few`
// inputs meet two passes in one reading. All panels of 5760 x 2880 wide, 2 cores of a Xeon,
// 2026-11-22: tiles 0.72 ms (one pass), 1.7 (two) at 64 inputs and 8.2, 12.3 at 512; lost there:
// bf16 tiles, whose dots take twice the cycles (2.3 and 13.4 ms), and int8 block by block on VNNI,
// added up in float32 (2.3 and 25). Without AMX block by block would win (64 inputs: 2.5 ms, two
// passes 4.0; 512: 21 and 26), but every machine gives the same bits.
//
// Bytes: the weights once. Work: 16 x 16 x 64 products a dot, 16 cycles each: one core of an
// Emerald Rapids reaches 7 TOP/s with nothing else to do. Reached on 2 of 16 virtual Xeon cores,
// 2026-11-21, beside GPU jobs (reads at 22 to 30 GB/s, tiles alone 11.3 TOP/s): 64 tokens 84% of
// the floor in moe_up and moe_down; 512 tokens 2.4 TOP/s in moe_up, 2.2 in moe_down, 3.2 to 3.3 in
// norm_qkv and out_proj (VNNI there: 0.5 to 0.57); 2,048 tokens 3.4 in moe_up. Prompts of
// gpt-oss-20b's shape, MXFP4 dense, 2026-11-22: 512 tokens 254 to 269 tokens/s, 2,048 299 to 319.
// What binds: inputs do not fit L1, and a step's 4 KB of them from L2 take longer than its four
// dots (64 inputs that stay in L1 reach 5.9 TOP/s, all else the same; 2.5 from L2). Lost: an odd
// last tile of inputs by itself, which looks up all weights once more (512 tokens: 2.1 in moe_up,
// 1.5 in moe_down); for 64 inputs, two panels by two tiles of inputs, and inputs fetched into L1 a
// step ahead (1.0 to 2.3 TOP/s both).
//
// On VNNI four panels are looked up as bytes (in L2) and met by 8 vectors at a time, two by two, 16
// sums in registers: 14 operations a step beside 16 products. On 2 cores of an EPYC (register peak
// 872 GOP/s), 2026-11-21: 512 tokens 748 GOP/s in moe_up, 783 in out_proj, where Int8Kernels, which
// scale each block's sum, reach 616 and 653. Prompts on gpt-oss-20b's shape, MXFP4 dense,
// 2026-11-22: 512 tokens 122 tokens/s, 2,048 109; of perf's samples 81% and 77% in these products
// (so at 98% of the register peak, which binds: 144 tokens/s), 6% and 7% in lookups, 4% and 9% in
// attention before it was made faster, 2% rounding inputs. Lost: lookups without fetching the
// panels behind during the products (723), and for 8 vectors or fewer (64 tokens: 370 in place of
// 567).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"

namespace nibble::ops {

// Inputs that share a tile, and k that share a step of it.
inline constexpr int kAmxTileTokens = 16;
inline constexpr int kAmxStepElems = 64;
inline constexpr int kAmxTileBytes = kAmxTileTokens * kAmxStepElems;
inline constexpr int kMostExponentSpread = 3;  // 12 << 3 is 96

struct PanelRun {
  const uint8_t* codes;   // [panels][K / 32][256]
  const uint8_t* scales;  // [panels][K / 32][16]
  const uint16_t* bias;   // [panels * 16] or none
  int64_t panels;         // at most kMostPanels
  int64_t steps;          // K / 64
  int64_t tokens;
  const int8_t* tiles;  // [ceil(tokens / 16)][steps][16][64], zeros behind the last; one more tile
                        // may be read
  const float* half_steps;  // [tokens] half the step of each vector
  const int32_t* sums;      // [tokens] of its codes
  const std::byte*
      block_tile;  // up to `few` tokens, in place of these three: as Int8Kernels take them
  float* y;        // y[m * ldy + n]
  int64_t ldy;
  std::byte* scratch;  // run_scratch_bytes() of this worker, at 64 bytes
};
inline constexpr int64_t kMostPanels = 4;
constexpr int64_t run_scratch_bytes(int64_t steps) {
  return std::max<int64_t>(56 << 10, kMostPanels * steps * kAmxTileBytes);
}

// Passes over a panel in whole numbers, each row from a base of its own: pass i takes the blocks
// whose exponents lie within kMostExponentSpread of bases[i], the least that no pass before took.
inline constexpr int kMostPasses = 256 / (kMostExponentSpread + 1);
using PanelBases = uint8_t[kMostPasses][16];
int panel_bases(const uint8_t* scales, int64_t blocks, PanelBases& bases);

struct RowCodes {
  float half_step;
  int32_t sum;  // of the codes
};

struct Int8RowKernels {
  int64_t few;  // tokens up to which multiply() reads block_tile
  RowCodes (*encode)(const float* x, int64_t n, int8_t* q);
  void (*multiply)(const PanelRun& run);
};

// Those of kAmx or kAvx512Vnni; they give the same bits.
const Int8RowKernels& int8_row_kernels(cpu::Isa isa);
// Those of kAmx with emulated tiles, for tests on AVX-512 machines without.
const Int8RowKernels& emulated_int8_row_kernels();

}  // namespace nibble::ops
