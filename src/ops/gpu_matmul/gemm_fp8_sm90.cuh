// Grouped GEMM by wgmma for many rows with E4M3 activations and MXFP4 or NVFP4 weights (W4A8), or
// dense FP8 ones with scales of rows (W8A8):
// y[slot] = scale[row of slot] * (x8[row of slot] W_e^T) + b_e, e the slot's expert.
//
//   weights  in   [E][N / 16][K / 64] units of 544 bytes, see formats/layout.h; NVFP4: 576, FP8:
//                 1,024, both with [E][N] f32
//   row_exponents  in   of MXFP4 [E][N] u8: least E8M0 exponent of a row; no block's is more than
//                 14 above
//   x        in   [*, K] E4M3 in E4M3 order (below); x_scale [*] f32 or one constant
//   token, offsets, bias, y: as in gemm_sm90.cuh; with SwiGLU of MXFP4 y is E4M3 in E4M3 order
//
// A weight m * 2^(s - 127) becomes m * 2^(s - least - 8), which E4M3 holds exactly (2^-9 .. 384):
// the eight magnitudes of a block come by PRMT from eight bytes, one of 15 lines of a table in
// shared memory. The row's 2^(least - 119) goes to the epilogue. NVFP4's table has a line for every
// scale s: E4M3 of m s / 8, which rounds the six bits of 1.5, 3 and 6 times s to four (and products
// below 2^-6, an eighth of a percent of the row's largest weight or less, to 2^-9): 1.6% rms of the
// weights, where E2M1 itself is 8% off; eight times the row's float32 goes to the epilogue. E4M3
// order: within 32 k, byte 16 o + 4 p + i is k = 8 i + 2 p + o, which is how the A fragment lies in
// a word of a unit.
//
// Work items and ring are gemm_sm90.cuh's, with stages of 128 k; of an odd number of
// 64s the last stage is half zeros. Sums are one chain over K in wgmma's accumulator, which keeps
// about 14 bits: measured over K = 2,880, they are off by 1.1e-3 rms of the result and without
// bias, where rounding x to E4M3 costs 2.6e-2.
//
// Bytes: E N K 17 / 32 + slots (K + 2 N); floor on an H200 the larger of these at 4.55 TB/s and 2
// slots N K at 1,450 TFLOP/s. gpt-oss-120b on an H200, 2026-11-22, random routing,
// `nibble bench ops`, each op with all its launches:
//   moe_up (E 128, K 2880, N 5760)  1,024 tokens 404 us (67% of floor, bytes), 8,192 1,141 (66%)
//   moe_down (N 2880)               223 us (64%), 625 us (60%)
//   norm_qkv, out_proj, 8,192       397 us (608 TFLOP/s), 254 us (762 TFLOP/s)
// What binds: a warp's own chain from shared memory to wgmma, 162 instructions a stage (192 before,
// moe_up 1,210 us: descriptors known to be uniform, constants of PRMT from memory, shifts and table
// places by dot products). Hence kept(), and descriptors as one word.
//
// Lost: promotion to float32, a branch for the last half stage: docs/lab/prompts.md.
#pragma once

#include "cuda/fp8.cuh"
#include "ops/gpu_matmul/e2m1_as_e4m3.cuh"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/gpu_matmul/gemm_sm90.cuh"
#include "ops/gpu_matmul/gemm_turn_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

// Two warpgroups multiply; a warp has sums of kRowTiles tiles of 16 rows by kSlotTiles of kMaxN
// slots.
template <Format kFormat_, GemmOut kOut_, int kRowTiles_, int kSlotTiles_, int kMaxN_, int kStages_>
struct Fp8Shape {
  static constexpr Format kFormat = kFormat_;
  using Unit = gpu::Unit<kFormat>;
  static constexpr bool kHasBytes = !Unit::kHasNibbles, kHasExponents = kFormat == Format::kMxfp4;
  static constexpr int kLines = kNarrowLines<kFormat>;
  static constexpr GemmOut kOut = kOut_;
  static constexpr int kGroups = 2, kRowTiles = kRowTiles_, kSlotTiles = kSlotTiles_;
  static constexpr int kMaxN = kMaxN_, kStages = kStages_;
  static constexpr int kMaxSlots = kMaxN * kSlotTiles, kStep = 16 * kSlotTiles;
  static constexpr int kThreads = 128 * (1 + kGroups);
  static constexpr bool kFillsByWidth = false, kIsSliced = false;
  static constexpr int kRows = 64 * kRowTiles * kGroups;
  // Of the 64 K of an SM.
  static constexpr int kFillRegisters = 72, kMultiplyRegisters = 216;
  static constexpr int kStageK = 128;
  static constexpr int kTileBytes = 2 * Unit::kBytes;  // 16 rows of a stage
  static constexpr int kXBytes = kMaxSlots * kStageK;
  static constexpr int kWBytes = kRows / 16 * kTileBytes;
  static constexpr int kW = kStages * kXBytes;
  // SwiGLU's output of a warpgroup, before it leaves in rows of whole blocks.
  static constexpr int kFeatures = 32 * kRowTiles;
  static constexpr bool kLeavesE4m3 = kOut == GemmOut::kSwiglu && kHasExponents;
  static constexpr int kOutBytes = kLeavesE4m3 ? kMaxSlots * kFeatures : 0;
  static constexpr int kOutput = kW + kStages * kWBytes;
  static constexpr int kScales = kOutput + kGroups * kOutBytes;      // of x, of a warpgroup's item
  static constexpr int kPlaces = kScales + kGroups * kMaxSlots * 4;  // of kQkv, likewise
  static constexpr int kTable = kPlaces + (kOut == GemmOut::kQkv ? kGroups * kMaxSlots * 4 : 0);
  static constexpr int kBarriers = kTable + (kLines + 1) * 8;
  static constexpr int kLists = kBarriers + 2 * kStages * 8;
  static constexpr int kBytes = kLists + (3 * kMaxExperts + 1) * 4 + 1024;
};

// Many: weights are expanded once for twice the slots.
template <Format kFormat, GemmOut kOut>
using Fp8Some = Fp8Shape<kFormat, kOut, 2, 1, 128, 6>;
template <Format kFormat, GemmOut kOut>
using Fp8Many = Fp8Shape<kFormat, kOut, 1, 2, 144, 4>;

struct Fp8Params : GemmArgs {
  const uint8_t* units;
};

template <typename S>
struct Fp8Block : GemmRing<Fp8Block<S>, S> {
  using Ring = GemmRing<Fp8Block<S>, S>;
  using Ring::base, Ring::smem, Ring::slot, Ring::phase, Ring::x_at, Ring::w_at, Ring::full;
  using Ring::empty, Ring::next, Ring::release, Ring::wait_filled;
  const Fp8Params& g;

  __device__ Fp8Block(const Fp8Params& params, char* memory) : Ring{params, memory}, g(params) {}
  __device__ __forceinline__ int stages(const GemmItem&) const {
    return (g.cols + 127) / 128 + (S::kOut == GemmOut::kQkv ? 2 : 0);
  }

  __device__ __forceinline__ void fill(const GemmItem& it, int t) {
    const int chunk = t % 8, lane_row = t / 8;
    const uint32_t to = lane_row * 128 + ((chunk ^ (lane_row % 8)) << 4);
    // Where rows of x begin, in 16-byte chunks: a lane keeps every 32nd of its warp's.
    constexpr int kStarts = (S::kMaxSlots + 127) / 128;
    uint32_t starts[kStarts];
#pragma unroll
    for (int i = 0; i < kStarts; ++i) {
      const int in_warp = t % 32 + 32 * i, in_tile = in_warp / 4 * 16 + t / 32 * 4 + in_warp % 4;
      const int s = it.slot0 + min(in_tile, it.valid - 1);
      const int row = g.token != nullptr ? g.token[s] : s;
      starts[i] = static_cast<uint32_t>(row) * (g.cols / 16);
    }
    const int units = g.cols / 64, last = (g.rows - it.row0) / 16 - 1;
    const int64_t tile0 = static_cast<int64_t>(it.expert) * (g.rows / 16) + it.row0 / 16;
    constexpr int kBytes = S::Unit::kBytes;
    const uint8_t* w = g.units + tile0 * units * kBytes;
    const int at = t % 32 * 16;
    uint32_t tiles[S::kRows / 64];  // where this warp's begin
#pragma unroll
    for (int i = 0; i < S::kRows / 64; ++i)
      tiles[i] = min(t / 32 + 4 * i, last) * units * kBytes + at;
    constexpr int kRest = (S::kTileBytes - 1024) / 16;  // of nibbles: chunks behind two of 512
    [[maybe_unused]] const uint32_t rest =
        min(t / kRest, last) * units * kBytes + 1024 + t % kRest * 16;
    const uint4* x = reinterpret_cast<const uint4*>(g.x);
    for (int k = 0; k < g.cols; k += 128, w += S::kTileBytes, x += 8, next()) {
      // Of the last 64 k of an odd number, the second half: zeros by any weights.
      const bool is_half = k + 64 == g.cols;
      const int second = is_half ? kBytes : 0;
      barrier_wait(empty(slot), phase ^ 1);
      const uint32_t to_w = w_at(slot) + at;
      const int back = t % 32 * 16 + 512 >= kBytes ? second : 0;
#pragma unroll
      for (int i = 0; i < S::kRows / 64; ++i) {
        const int tile = t / 32 + 4 * i;
        copy_16(to_w + tile * S::kTileBytes, w + tiles[i]);
        copy_16(to_w + tile * S::kTileBytes + 512, w + (tiles[i] + 512 - back));
        if constexpr (S::kHasBytes)
#pragma unroll
          for (int more = 1024; more < 2048; more += 512)
            copy_16(to_w + tile * S::kTileBytes + more, w + (tiles[i] + more - second));
      }
      if (!S::kHasBytes && t < S::kRows / 16 * kRest)
        copy_16(w_at(slot) + t / kRest * S::kTileBytes + 1024 + t % kRest * 16,
                w + (rest - second));
      const int size = is_half && chunk >= 4 ? 0 : 16;
#pragma unroll
      for (int i0 = 0; i0 < 8 * kStarts; i0 += 8) {
#pragma unroll 4
        for (int i = 0; i < min(8, it.n / 16 - i0); ++i) {
          const uint32_t start = __shfl_sync(~0u, starts[i0 / 8], i * 4 + t % 32 / 8);
          copy_16_or_zeros(x_at(slot) + to + (i0 + i) * 2048, x + (size != 0 ? start + chunk : 0),
                           size);
        }
      }
      barrier_arrive_after_copies(full(slot));
    }
    if constexpr (S::kOut == GemmOut::kQkv) fill_turns(*this, it, t);
  }

  using Unit = LaneUnit<S::kOut, S::kTileBytes, typename S::Unit>;
  // A warp's part of a unit: a lane's words, and of nibbles the lines of the table they read.
  struct Piece {
    typename Unit::Codes q;
    uint2 line[S::kHasBytes ? 1 : S::kHasExponents ? 4 : 8];
  };
  // `rows`: the place of line 0 for exponent 0, or scale 0, of a lane's two.
  __device__ __forceinline__ static void load(Piece& piece, const Unit& unit, uint32_t offset,
                                              const uint32_t (&rows)[2]) {
    typename Unit::Scales s;
    unit.take(offset, piece.q, s);
    if constexpr (S::kHasExponents) {
#pragma unroll
      for (int i = 0; i < 4; ++i) piece.line[i] = line(at_eighth(s, i, rows[i % 2]));
    } else if constexpr (!S::kHasBytes) {
      // Of a word, 32 k of a row, both blocks.
#pragma unroll
      for (int i = 0; i < 8; ++i)
        piece.line[i] = line(at_eighth(i < 4 ? s.x : s.y, i / 2 % 2 + i % 2 * 2, rows[0]));
    }
  }
  __device__ __forceinline__ static uint2 line(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
  }
  __device__ __forceinline__ static void expand_piece(const Piece& piece, uint32_t ones,
                                                      uint32_t (&a)[2][4]) {
    if constexpr (S::kHasBytes) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4& w = piece.q.half[half];  // whose bytes are k + 8, k, k + 9, k + 1
        a[half][0] = cuda::byte_permute(w.x, w.z, 0x4501),
        a[half][2] = cuda::byte_permute(w.x, w.z, 0x6723);
        a[half][1] = cuda::byte_permute(w.y, w.w, 0x4501),
        a[half][3] = cuda::byte_permute(w.y, w.w, 0x6723);
      }
      return;
    } else {
      expand_nibbles(piece, ones, a);
    }
  }
  __device__ __forceinline__ static void expand_nibbles(const Piece& piece, uint32_t ones,
                                                        uint32_t (&a)[2][4]) {
    const uint32_t words[4] = {piece.q.words.x, piece.q.words.y, piece.q.words.z, piece.q.words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t(&to)[4] = a[i / 2];
      if constexpr (S::kHasExponents)
        expand(words[i], piece.line[i], ones, to[i % 2], to[i % 2 + 2]);
      else
        expand(words[i], piece.line[2 * i], piece.line[2 * i + 1], ones, to[i % 2], to[i % 2 + 2]);
    }
  }

  template <int kN>
  __device__ __forceinline__ static void multiply_unit(float (&d)[kN / 2],
                                                       const uint32_t (&a)[2][4], uint32_t b,
                                                       int adds) {
    wgmma_e4m3<kN>(d, a[0], b, adds);
    wgmma_e4m3<kN>(d, a[1], b + 2, 1);
  }

  template <int kN>
  __device__ __forceinline__ void multiply(const GemmItem& it, int wg) {
    constexpr int kSlot1 = S::kSlotTiles == 2 ? kN : 0;  // of the second sums
    const Unit unit_at(w_at(0) + wg * S::kRowTiles * 4 * S::kTileBytes);
    const int first = it.row0 + wg * S::kRowTiles * 64;
    uint32_t rows[S::kRowTiles][2] = {};
    if constexpr (!S::kHasBytes && !S::kHasExponents) {
      const uint32_t table = kept(smem + S::kTable);
      for (auto& row : rows) row[0] = table;
    }
#pragma unroll
    for (int i = 0; i < (S::kHasExponents ? 2 * S::kRowTiles : 0); ++i) {
      using Lane = LaneRows<S::kOut>;
      const int row = min(first + i / 2 * 64 + Lane::first() + i % 2 * Lane::kApart, g.rows - 1);
      const uint32_t least = g.row_exponents[static_cast<int64_t>(it.expert) * g.rows + row];
      rows[i / 2][i % 2] = kept(smem + S::kTable - 8 * least);
    }
    take_scales<kN * S::kSlotTiles>(it, wg);
    // From memory: ptxas would copy a constant for every PRMT.
    const uint32_t ones = line(smem + S::kTable + S::kLines * 8).x;
    float d0[kN / 2], d1[kN / 2];
    uint32_t a[2][2][4];
    int previous = slot;
    for (int k = 0; k < g.cols; k += 128) {
      wait_filled();
      const uint32_t b = uniform(static_cast<uint32_t>(swizzled_128(x_at(slot))));
      // Row tiles take turns, then the stage's two units. One group of products is in flight.
#pragma unroll
      for (int i = 0; i < 2 * S::kRowTiles; ++i) {
        const int unit = i / S::kRowTiles, tile = i % S::kRowTiles;
        Piece piece;
        load(piece, unit_at, slot * S::kWBytes + tile * 4 * S::kTileBytes + unit * S::Unit::kBytes,
             rows[tile]);
        wgmma_wait<1>();
        if (i == 1 && k > 0) release(previous);
        expand_piece(piece, ones, a[i % 2]);
        wgmma_fence();
        const uint32_t bu = b + unit * 4;
        if (tile == 0) multiply_unit<kN>(d0, a[i % 2], bu, k + unit > 0);
        if constexpr (S::kSlotTiles == 2)
          multiply_unit<kN>(d1, a[i % 2], bu + kN * 8, k + unit > 0);
        else if constexpr (S::kRowTiles == 2)
          if (tile == 1) multiply_unit<kN>(d1, a[i % 2], bu, k + unit > 0);
        wgmma_commit();
      }
      previous = slot;
      next();
    }
    wgmma_wait<0>();
    release(previous);
    warpgroup_barrier(1 + wg);  // the scales are there
    constexpr bool kHasSecond = S::kRowTiles * S::kSlotTiles == 2;
    if constexpr (S::kOut == GemmOut::kQkv) {
      static_assert(S::kSlotTiles == 2);
      wait_filled();
      const int cosines = slot;
      next();
      wait_filled();
      turn<kN>(it, wg, first, 0, cosines, rows[0], d0);
      turn<kN>(it, wg, first, kSlot1, cosines, rows[0], d1);
      release(cosines);
      release(slot);
      next();
    } else {
      const int row0 = first + threadIdx.x / 32 % 4 * 16, row1 = row0 + (S::kRowTiles - 1) * 64;
      if (row0 < g.rows) store<kN>(it, wg, row0, 0, rows[0], d0);
      if constexpr (kHasSecond)
        if (row1 < g.rows) store<kN>(it, wg, row1, kSlot1, rows[S::kRowTiles - 1], d1);
    }
    if constexpr (S::kLeavesE4m3) store_output(it, wg);
  }

  // A head from row0 on: see GemmBlock::turn().
  template <int kN>
  __device__ __forceinline__ void turn(const GemmItem& it, int wg, int row0, int column0,
                                       int cosines, const uint32_t (&rows)[2],
                                       const float (&d)[kN / 2]) {
    int32_t* places = reinterpret_cast<int32_t*>(base + S::kPlaces) + wg * S::kMaxSlots;
    if (column0 == 0) find_places(places, g.qkv, it, row0 / 64, wg);
    const float2 bias = biases(it, row0 + LaneRows<S::kOut>::first());
    const float f0 = factor(rows[0]), f1 = factor(rows[1]);
    store_turned<kN>(g.qkv, it, row0 / 64, column0, x_at(cosines), x_at(slot), places, [&](int j) {
      const float2 x = scales_at(wg, column0 + 8 * j);
      return float4{fmaf(d[4 * j] * f0, x.x, bias.x), fmaf(d[4 * j + 1] * f0, x.y, bias.x),
                    fmaf(d[4 * j + 2] * f1, x.x, bias.y), fmaf(d[4 * j + 3] * f1, x.y, bias.y)};
    });
  }

  // 2^(least - 119) of a row.
  __device__ __forceinline__ float factor(uint32_t row) const {
    return __uint_as_float(((smem + S::kTable - row) / 8 + 8) << 23);
  }
  // Of a lane's two rows, the first of which is `row`.
  __device__ __forceinline__ float2 factors(const GemmItem& it, int row,
                                            const uint32_t (&rows)[2]) const {
    if constexpr (S::kHasExponents) {
      return {factor(rows[0]), factor(rows[1])};
    } else {
      constexpr float kFactor = S::kHasBytes ? 1 : kNvfp4Narrowed;
      const float* at = g.row_scales + static_cast<int64_t>(it.expert) * g.rows + row;
      return {at[0] * kFactor, at[8] * kFactor};
    }
  }
  __device__ __forceinline__ float2 biases(const GemmItem& it, int row) const {
    if (g.bias == nullptr) return {0, 0};
    const uint16_t* at = g.bias + static_cast<int64_t>(it.expert) * g.rows + row;
    return {cuda::bf16_value(at[0]), cuda::bf16_value(at[LaneRows<S::kOut>::kApart])};
  }
  // Of a lane's two columns of 8.
  __device__ __forceinline__ float2 scales_at(int wg, int column) const {
    return load_pair(shared_address(scales(wg) + column + threadIdx.x % 4 * 2));
  }

  // 16 rows from row0 on, slots of the item from slot0 on: see GemmBlock::store().
  template <int kN>
  __device__ __forceinline__ void store(const GemmItem& it, int wg, int row0, int slot0,
                                        const uint32_t (&rows)[2], const float (&d)[kN / 2]) {
    const int lane = threadIdx.x % 32, row = lane / 4;
    const bool odd = row & 1;
    const auto [f0, f1] = factors(it, row0 + row, rows);
    const auto [b0, b1] = biases(it, row0 + row);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const int column = slot0 + 8 * j + 2 * (lane % 4);
      const float2 x = scales_at(wg, slot0 + 8 * j);
      const float v0 = fmaf(d[4 * j] * f0, x.x, b0), v1 = fmaf(d[4 * j + 1] * f0, x.y, b0);
      const float v2 = fmaf(d[4 * j + 2] * f1, x.x, b1), v3 = fmaf(d[4 * j + 3] * f1, x.y, b1);
      const float r0 = __shfl_xor_sync(~0u, odd ? v0 : v1, 4);
      const float r1 = __shfl_xor_sync(~0u, odd ? v2 : v3, 4);
      if (S::kOut != GemmOut::kSwiglu && column + odd >= it.valid) continue;
      store_pairs(it, column + odd, row0, row, odd ? float2{r0, v1} : float2{v0, r0},
                  odd ? float2{r1, v3} : float2{v2, r1});
    }
  }

  // The item's scales of x, for the end: fetched at the start, by a warpgroup.
  __device__ __forceinline__ float* scales(int wg) const {
    return reinterpret_cast<float*>(base + S::kScales) + wg * S::kMaxSlots;
  }
  template <int kSlots>
  __device__ __forceinline__ void take_scales(const GemmItem& it, int wg) const {
    warpgroup_barrier(1 + wg);  // nobody reads those of the item before
    for (int i = threadIdx.x % 128; i < kSlots; i += 128) {
      const int s = it.slot0 + min(i, it.valid - 1);
      scales(wg)[i] =
          g.x_scale == nullptr ? g.x_scale_all : g.x_scale[g.token != nullptr ? g.token[s] : s];
    }
  }

  // Rows (row & ~1, + 1) and the same + 8 of 16, one slot.
  __device__ __forceinline__ void store_pairs(const GemmItem& it, int column, int row0, int row,
                                              float2 low, float2 high) {
    if constexpr (S::kOut == GemmOut::kSwiglu && !S::kLeavesE4m3) {
      store_swiglu(g, it, column, row0, row, low, high);
    } else if constexpr (S::kOut == GemmOut::kSwiglu) {
      // The lane has features f and f + 4 of the warpgroup's, in E4M3 order.
      const int f = row0 / 2 % S::kFeatures + row / 2, wg = row0 / 2 / S::kFeatures % S::kGroups;
      const uint32_t codes = cuda::e4m3_pair(swiglu(low.x, low.y, g.act) * (1 / kExpertScale),
                                             swiglu(high.x, high.y, g.act) * (1 / kExpertScale));
      char* y = base + S::kOutput + wg * S::kOutBytes + column * S::kFeatures + f / 32 * 32;
      y += f % 2 * 16 + f % 8 / 2 * 4 + f % 32 / 8;
      y[0] = static_cast<char>(codes);
      y[8] = static_cast<char>(codes >> 8);
    } else {
      const int64_t first = (int64_t{it.slot0} + column) * g.rows + row0 + (row & ~1);
      if constexpr (S::kOut == GemmOut::kBF16) {
        uint16_t* y = static_cast<uint16_t*>(g.y) + first;
        *reinterpret_cast<uint32_t*>(y) = pack(low.x, low.y);
        *reinterpret_cast<uint32_t*>(y + 8) = pack(high.x, high.y);
      } else {
        float* y = static_cast<float*>(g.y) + first;
        *reinterpret_cast<float2*>(y) = low;
        *reinterpret_cast<float2*>(y + 8) = high;
      }
    }
  }

  // By a warpgroup: what its warps left in shared memory, a slot's features in 16-byte chunks.
  __device__ __forceinline__ void store_output(const GemmItem& it, int wg) {
    constexpr int kChunks = S::kFeatures / 16;
    warpgroup_barrier(1 + wg);
    const char* from = base + S::kOutput + wg * S::kOutBytes;
    uint8_t* to = static_cast<uint8_t*>(g.y) + int64_t{it.slot0} * (g.rows / 2) +
                  (it.row0 / 2 + wg * S::kFeatures);
    for (int i = threadIdx.x % 128; i < it.valid * kChunks; i += 128)
      *reinterpret_cast<uint4*>(to + int64_t{i / kChunks} * (g.rows / 2) + i % kChunks * 16) =
          *reinterpret_cast<const uint4*>(from + i * 16);
  }
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    fp8_gemm_kernel(const __grid_constant__ Fp8Params g) {
  extern __shared__ char raw[];
  Fp8Block<S> block(g, aligned_1024(raw));
  for (int i = threadIdx.x; i < 8 * (S::kLines + 1); i += S::kThreads)
    reinterpret_cast<uint8_t*>(block.base + S::kTable)[i] =
        i < 8 * S::kLines ? static_cast<uint8_t>(magnitude_of_line<S::kFormat>(i / 8, i % 8)) : 1;
  block.work(128);
}

}  // namespace nibble::ops::gpu::sm90
