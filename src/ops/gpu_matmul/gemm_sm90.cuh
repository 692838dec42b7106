// Grouped GEMM by wgmma for many rows: y[slot] = x[row of slot] W_e^T + b_e, e the slot's expert.
// One kernel for weights in MXFP4, NVFP4 and FP8 (kTiles16x64, dequantized to bf16 in registers)
// and in bf16 rows.
//
//   weights  in   tiles: [E][N / 16][K / 64] units, see formats/layout.h, and of NVFP4 and FP8 in
//                 rows [E][N] f32; bf16: [N][K]
//   x        in   [*, K] bf16;  token [slots] i32: row of x of a slot, or none: the slot itself
//   offsets  in   [E + 1] i32, on the device: the host knows no routing; none: one expert
//   bias     in   [E][N] bf16, or none
//   y        out  [slots, N] bf16 or f32, or with SwiGLU [slots, N / 2] bf16
//
// K % 64 == 0, N % 16 == 0. Weights are the M side: D^T = W x^T, so a lane dequantizes the A
// fragment that it feeds (unit.cuh), and the token side may be narrow. A scale of MXFP4 of 255
// makes its row NaN; no scales that are too large are loaded (kLargestE8m0).
//
// A work item is kRows rows of one expert and up to kMaxSlots slots. A block takes every gridDim-th
// item; one warpgroup fills a ring of (x, W) stages of 64 k, two multiply. Sums are one chain over
// K for every element: the same whatever else is in the step.
//
// Bytes: E N K 17 / 32 + slots (2 K + 2 N); floor on an H200 the larger of these at 4.55 TB/s and
// 2 slots N K at 790 TFLOP/s. gpt-oss-120b on an H200, 2026-11-21, random routing:
//   up (E 128, K 2880, N 5760)   512 tokens 561 us (45% of floor, bytes), 2,048 706 us (49%, math),
//                                8,192 1,745 us (79%)
//   down (N 2880)                295 us (43%), 370 us (46%)
//   dense, 8192 tokens           qkv 584, out 579 TFLOP/s (74%); in bf16 627 and 632 (80%)
// What binds at 16 rows an expert: the integer pipe and issue slots (60% busy with 3 warps a
// scheduler: 617 instructions a stage, 270 of them dequantization). At 256 rows: a warp's chain
// from shared memory to wgmma (tensor pipe 70% busy, nobody waits for wgmma; 13% of the multiplying
// warps' time is SwiGLU and its stores), and in a whole prompt 700 W.
//
// Lost: weights by the copy engine, more multiplying warpgroups, wider items: docs/lab/prompts.md.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/tensor_map.cuh"
#include "ops/gpu_matmul/gemm_store_sm90.cuh"
#include "ops/gpu_matmul/gemm_turn_sm90.cuh"
#include "ops/gpu_matmul/unit.cuh"

namespace nibble::ops::gpu::sm90 {

inline constexpr int kUnitBytes = 544;          // of MXFP4
inline constexpr int kMostShared = 227 * 1024;  // of a block

// A warp's sums: of two tiles of 16 rows by kMaxN slots; or, kWide, of one tile by twice as many
// slots, where weights meet enough of them: each is dequantized for twice the products.
template <Format kFormat, GemmOut kOut_, bool kWide_>
struct GemmShape {
  static constexpr bool kIsTiles = kFormat != Format::kBF16;
  static constexpr bool kIsSliced = kOut_ == GemmOut::kSlices;
  using Unit = gpu::Unit<kIsTiles ? kFormat : Format::kMxfp4>;
  static constexpr GemmOut kOut = kOut_;
  static constexpr bool kWide = kWide_;
  static constexpr int kGroups = 2, kRowTiles = kWide ? 1 : 2, kSlotTiles = kWide ? 2 : 1;
  static constexpr bool kHasBytes = kIsTiles && !Unit::kHasNibbles;
  static constexpr int kMaxN = kWide && !kHasBytes ? 144 : 128;  // slots of a tile
  static constexpr int kMaxSlots = kMaxN * kSlotTiles, kStep = 16 * kSlotTiles;
  static constexpr int kThreads = 128 * (1 + kGroups);
  static constexpr bool kFillsByWidth = true;
  static constexpr int kRows = 64 * kRowTiles * kGroups;
  // Of the 64 K of an SM: what the filling warpgroup gives away, the others get.
  static constexpr int kFillRegisters = 88, kMultiplyRegisters = 208;
  static constexpr int kXBytes = kMaxSlots * 128;
  static constexpr int kWBytes = kIsTiles ? kRows / 16 * Unit::kBytes : kRows * 128;
  static constexpr bool kStagesOutput =
      kOut == GemmOut::kSwiglu || kOut == GemmOut::kBF16 || kOut == GemmOut::kRelu2;
  static constexpr int kOutputBytes = kStagesOutput ? kGroups * 2 * kStagedBytes : 0;
  static constexpr int kListBytes = (3 * kMaxExperts + 1) * 4 + 1024;
  static constexpr int kMostStages = kWide ? 5 : kHasBytes ? 6 : kIsTiles ? 8 : 4;
  static constexpr bool kFits =
      kMostStages * (kXBytes + kWBytes + 16) + 1023 + kOutputBytes + kListBytes <= kMostShared;
  static constexpr int kStages = kFits ? kMostStages : kMostStages - 1;
  static constexpr int kW = kStages * kXBytes;
  static constexpr int kStaged = (kW + kStages * kWBytes + 1023) / 1024 * 1024;
  // Of kQkv, of a warpgroup's item.
  static constexpr int kPlaces = kStaged + kOutputBytes;
  static constexpr int kBarriers = kPlaces + (kOut == GemmOut::kQkv ? kGroups * kMaxSlots * 4 : 0);
  static constexpr int kLists = kBarriers + 2 * kStages * 8;
  static constexpr int kBytes = kLists + kListBytes;
  static_assert(kBytes <= kMostShared);
};

struct GemmParams : GemmArgs {
  const uint8_t* units;  // of kTiles16x64
  CUtensorMap boxes;     // bf16: of 64 rows x 64 k
};

// `args` with w's shape and place.
inline GemmParams gemm_params(const Weight& w, GemmArgs args) {
  CHECK(w.format == Format::kBF16 ? w.layout == Layout::kRows && w.experts == 1
                                  : w.layout == Layout::kTiles16x64);
  args = args_of(w, args);
  if (w.format != Format::kBF16) return {args, w.codes, {}};
  return {args, nullptr,
          cuda::tensor_map({.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                            .data = w.codes,
                            .cols = static_cast<uint64_t>(w.cols),
                            .rows = static_cast<uint64_t>(w.rows),
                            .pitch_bytes = static_cast<uint64_t>(2 * w.cols),
                            .box_cols = 64,
                            .box_rows = 64,
                            .swizzle = CU_TENSOR_MAP_SWIZZLE_128B})};
}

// bf16 of gates and ups: rows (row & ~1, + 1) and the same + 8 of the 16 from row0 on, one column.
__device__ __forceinline__ void store_swiglu(const GemmArgs& g, const GemmItem& it, int column,
                                             int row0, int row, float2 low, float2 high) {
  const float u0 = swiglu(low.x, low.y, g.act), u1 = swiglu(high.x, high.y, g.act);
  const int f = row / 2;  // the lane has features f and f + 4 of 8; neighbours pair up again
  const float r = __shfl_xor_sync(~0u, (f & 1) ? u0 : u1, 8);
  const uint32_t out = (f & 1) ? pack(r, u1) : pack(u0, r);
  const int64_t feature = row0 / 2 + ((f & 1) ? f + 3 : f);
  if (column < it.valid)
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(g.y) +
                                 (int64_t{it.slot0} + column) * (g.rows / 2) + feature) = out;
}

template <typename S>
struct GemmBlock : GemmRing<GemmBlock<S>, S> {
  using Ring = GemmRing<GemmBlock<S>, S>;
  using Ring::base, Ring::slot, Ring::phase, Ring::x_at, Ring::w_at, Ring::full, Ring::empty;
  using Ring::next, Ring::release, Ring::wait_filled;
  using U = typename S::Unit;
  const GemmParams& g;
  Staged staged;

  __device__ GemmBlock(const GemmParams& params, char* memory)
      : Ring{params, memory}, g(params), staged{} {
    const int wg = threadIdx.x / 128 - 1;
    staged.barrier = 1 + wg, staged.first = this->smem + S::kStaged + wg * 2 * kStagedBytes;
  }
  // Units [begin, end) of K that an item has.
  struct Share {
    int begin, end;
  };
  __device__ __forceinline__ Share share(const GemmItem& it) const {
    const int units = g.cols / 64;
    if constexpr (!S::kIsSliced) return {0, units};
    return {units * it.slice / g.slices, units * (it.slice + 1) / g.slices};
  }
  __device__ __forceinline__ int stages(const GemmItem& it) const {
    const Share mine = share(it);
    return mine.end - mine.begin + (S::kOut == GemmOut::kQkv ? 2 : 0);
  }

  // The filling warpgroup, one item: activations (which may lie in any order) by cp.async, a row's
  // 128 bytes by 8 threads.
  template <int kN>
  __device__ __forceinline__ void fill(const GemmItem& it, int t) {
    const Share mine = share(it);
    const int chunk = t % 8, lane_row = t / 8;
    const uint32_t to = lane_row * 128 + ((chunk ^ (lane_row % 8)) << 4);
    // Where rows of x begin, in 16-byte chunks: a lane keeps every 32nd of its warp's.
    constexpr int kCopies = kN * S::kSlotTiles / 16;
    uint32_t starts[(kCopies + 7) / 8];
#pragma unroll
    for (int i = 0; i < (kCopies + 7) / 8; ++i) {
      const int in_warp = t % 32 + 32 * i, in_tile = in_warp / 4 * 16 + t / 32 * 4 + in_warp % 4;
      const int s = it.slot0 + min(in_tile, it.valid - 1);
      const int row = g.token != nullptr ? g.token[s] : s;
      starts[i] = static_cast<uint32_t>(row) * (g.cols / 8);
    }
    Units weights(g, it, t, mine.begin);
    for (int u = mine.begin; u < mine.end; ++u) {
      barrier_wait(empty(slot), phase ^ 1);
      if constexpr (S::kIsTiles)
        weights.fetch(w_at(slot), t);
      else if (t == 0)
        fetch_rows(it, u);
      const uint4* x = reinterpret_cast<const uint4*>(g.x) + u * 8 + chunk;
      // Of the last step those that are no slots are zeros: their products take less power.
      constexpr int kWhole = kCopies - S::kSlotTiles;
#pragma unroll
      for (int i0 = 0; i0 < kWhole; i0 += 8) {
#pragma unroll 4
        for (int i = 0; i < min(8, kWhole - i0); ++i)
          copy_16(x_at(slot) + to + (i0 + i) * 2048,
                  x + __shfl_sync(~0u, starts[i0 / 8], i * 4 + t % 32 / 8));
      }
#pragma unroll
      for (int i = kWhole; i < kCopies; ++i)
        copy_16_or_zeros(x_at(slot) + to + i * 2048,
                         x + __shfl_sync(~0u, starts[i / 8], i % 8 * 4 + t % 32 / 8),
                         i * 16 + lane_row < it.valid ? 16 : 0);
      barrier_arrive_after_copies(full(slot));
      next();
    }
    if constexpr (S::kOut == GemmOut::kQkv) fill_turns(*this, it, t);
  }

  // An item's units. A warp moves the codes of one at a time, 2 or 4 threads its scales. (The
  // copy engine takes 50 ns for every 544 bytes, whether asked by unit or by box.)
  struct Units {
    static constexpr int kOfScales = std::max(1, U::kScaleBytes / 16);
    const uint8_t* at;  // of the next stage
    uint32_t tiles[S::kRows / 64], scales;

    __device__ __forceinline__ Units(const GemmParams& g, const GemmItem& it, int t, int begin) {
      const int units = g.cols / 64, last = (g.rows - it.row0) / 16 - 1;
      at = g.units +
           ((static_cast<int64_t>(it.expert) * (g.rows / 16) + it.row0 / 16) * units + begin) *
               U::kBytes;
#pragma unroll
      for (int i = 0; i < S::kRows / 64; ++i)
        tiles[i] = min(t / 32 + 4 * i, last) * units * U::kBytes + t % 32 * 16;
      scales = min(t / kOfScales, last) * units * U::kBytes + U::kCodeBytes + t % kOfScales * 16;
    }
    __device__ __forceinline__ void fetch(uint32_t to, int t) {
      asm volatile("" : "+l"(at));  // or the address of each tile would be kept, and stepped
#pragma unroll
      for (int i = 0; i < S::kRows / 64; ++i)
#pragma unroll
        for (int half = 0; half < U::kCodeBytes; half += 512)
          copy_16(to + (t / 32 + 4 * i) * U::kBytes + t % 32 * 16 + half, at + tiles[i] + half);
      if (U::kScaleBytes > 0 && t < S::kRows / 16 * kOfScales)
        copy_16(to + t / kOfScales * U::kBytes + U::kCodeBytes + t % kOfScales * 16, at + scales);
      at += U::kBytes;
    }
  };

  // bf16: by boxes of 64 rows, so that the last rows cost what they are.
  __device__ __forceinline__ void fetch_rows(const GemmItem& it, int u) {
    constexpr int kBoxBytes = 64 * 128;
    const int boxes = (min(S::kRows, g.rows - it.row0) + 63) / 64;
    barrier_expect(full(slot), boxes * kBoxBytes);
    for (int b = 0; b < boxes; ++b)
      copy_box(w_at(slot) + b * kBoxBytes, g.boxes, u * 64, it.row0 + b * 64, full(slot));
  }

  // A multiplying warpgroup's part of an item. Two groups of products are in flight at a time;
  // while one runs, the A registers of the next are made.
  template <int kN>
  __device__ __forceinline__ void multiply_tiles(int wg, float (&d)[2][kN / 2]) {
    const int warp = threadIdx.x / 32 % 4, units = g.cols / 64;
    const char* mine = base + S::kW + (wg * 8 + warp) * U::kBytes;
    uint32_t a0[4][4], a1[4][4];
    int previous = slot;
    wgmma_fence();  // see multiply_wide
    for (int u = 0; u < units; ++u) {
      wait_filled();
      const char* w = mine + slot * S::kWBytes;
      decltype(codes_of<U>(w)) q[2];
      typename U::Scales s[2];
#pragma unroll
      for (int h = 0; h < 2; ++h, w += 4 * U::kBytes) q[h] = codes_of<U>(w), s[h] = scales_of<U>(w);
      const uint32_t b = uniform(static_cast<uint32_t>(swizzled_128(x_at(slot))));
      wgmma_wait<1>();
      decode_half<U, 0>(q[0], s[0], a0[0], a0[1]);
      decode_half<U, 1>(q[0], s[0], a0[2], a0[3]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_bf16<kN>(d[0], a0[k], b + 2 * k, u + k > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (u > 0) release(previous);
      decode_half<U, 0>(q[1], s[1], a1[0], a1[1]);
      decode_half<U, 1>(q[1], s[1], a1[2], a1[3]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_bf16<kN>(d[1], a1[k], b + 2 * k, u + k > 0);
      wgmma_commit();
      previous = slot;
      next();
    }
    wgmma_wait<0>();
    __syncwarp();
    release(previous);
  }

  // The same of one tile of rows by two tiles of slots: groups are the two blocks of a unit.
  template <int kN>
  __device__ __forceinline__ void multiply_wide(int wg, int units, float (&d)[2][kN / 2]) {
    using Lane = LaneUnit<S::kOut, U::kBytes, U>;
    const Lane unit(w_at(0) + wg * 4 * U::kBytes);
    uint32_t a0[2][4], a1[2][4];
    int previous = slot;
    wgmma_fence();  // aligned: the compiler knows a warp to be together, and the loop to be uniform
    for (int u = 0; u < units; ++u) {
      wait_filled();
      typename Lane::Codes q;
      typename U::Scales s;
      unit.take(slot * S::kWBytes, q, s);
      const uint32_t b = uniform(static_cast<uint32_t>(swizzled_128(x_at(slot))));
      wgmma_wait<1>();
      decode_half<U, 0>(q, s, a0[0], a0[1]);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        wgmma_bf16<kN>(d[j], a0[0], b + j * kN * 8, u > 0);
        wgmma_bf16<kN>(d[j], a0[1], b + j * kN * 8 + 2, 1);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (u > 0) release(previous);
      decode_half<U, 1>(q, s, a1[0], a1[1]);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        wgmma_bf16<kN>(d[j], a1[0], b + j * kN * 8 + 4, 1);
        wgmma_bf16<kN>(d[j], a1[1], b + j * kN * 8 + 6, 1);
      }
      wgmma_commit();
      previous = slot;
      next();
    }
    wgmma_wait<0>();
    __syncwarp();
    release(previous);
  }

  template <int kN>
  __device__ __forceinline__ void multiply_rows(int wg, int units,
                                                float (&d)[S::kRowTiles][kN / 2]) {
    int previous = slot;
    wgmma_fence();  // see multiply_wide
    for (int u = 0; u < units; ++u) {
      wait_filled();
      const uint64_t b = swizzled_128(uniform(x_at(slot)));
      wgmma_fence();
#pragma unroll
      for (int h = 0; h < S::kRowTiles; ++h) {
        const uint64_t a = swizzled_128(uniform(w_at(slot) + (wg * S::kRowTiles + h) * 64 * 128));
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma_bf16<kN>(d[h], a + 2 * k, b + 2 * k, u + k > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (u > 0) release(previous);
      previous = slot;
      next();
    }
    wgmma_wait<0>();
    __syncwarp();
    release(previous);
  }

  template <int kN>
  __device__ __forceinline__ void multiply(const GemmItem& it, int wg) {
    float d[2][kN / 2];
    const Share mine = share(it);
    if constexpr (S::kWide)
      multiply_wide<kN>(wg, mine.end - mine.begin, d);
    else if constexpr (S::kIsTiles)
      multiply_tiles<kN>(wg, d);
    else
      multiply_rows<kN>(wg, mine.end - mine.begin, d);
    if constexpr (S::kOut == GemmOut::kQkv) return turn<kN>(it, wg, d);
    const int first = it.row0 + wg * 64 * S::kRowTiles, of_warp = threadIdx.x / 32 % 4 * 16;
    if constexpr (S::kStagesOutput) {
#pragma unroll
      for (int i = 0; i < S::kRowTiles; ++i) {
        const int row0 = first + i * 64;
        store_lines<S::kOut, S::kSlotTiles * kN / 8>(
            g, it, row0, staged, factors(it, min(row0 + of_warp, g.rows - 16)), [&](int j) {
              const float* v = &d[i + j / (kN / 8)][j % (kN / 8) * 4];
              return float4{v[0], v[1], v[2], v[3]};
            });
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row0 = first + of_warp + i % S::kRowTiles * 64;
        if (row0 < g.rows) store<kN>(it, row0, i / S::kRowTiles * kN, d[i]);
      }
    }
  }

  // Of 16 rows from row0 on.
  __device__ __forceinline__ RowFactors factors(const GemmItem& it, int row0) const {
    constexpr float kBack = S::kIsTiles ? kSumFactor : 1;
    const int64_t at = static_cast<int64_t>(it.expert) * g.rows + row0 + threadIdx.x % 32 / 4;
    RowFactors f{kBack, kBack, 0, 0};
    if constexpr (S::kIsTiles && U::kHasRowScales)
      f.back0 *= g.row_scales[at], f.back1 *= g.row_scales[at + 8];
    if (g.bias != nullptr && (!S::kIsSliced || it.slice == 0)) {
      f.b0 = __uint_as_float(g.bias[at] << 16);
      f.b1 = __uint_as_float(g.bias[at + 8] << 16);
    }
    return f;
  }

  // The head that a warpgroup has sums of; the two stages behind those of K hold what turns it.
  template <int kN>
  __device__ __forceinline__ void turn(const GemmItem& it, int wg, const float (&d)[2][kN / 2]) {
    wait_filled();
    const int cosines = slot;
    next();
    wait_filled();
    int32_t* places = reinterpret_cast<int32_t*>(base + S::kPlaces) + wg * S::kMaxSlots;
    const int row0 = it.row0 + wg * 64;
    find_places(places, g.qkv, it, row0 / 64, wg);
    float b0 = 0, b1 = 0;
    if (g.bias != nullptr) {
      const uint16_t* at = g.bias + row0 + LaneRows<S::kOut>::first();
      b0 = __uint_as_float(at[0] << 16), b1 = __uint_as_float(at[LaneRows<S::kOut>::kApart] << 16);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      store_turned<kN>(g.qkv, it, row0 / 64, i * kN, x_at(cosines), x_at(slot), places, [&](int j) {
        return float4{fmaf(d[i][4 * j], kSumFactor, b0), fmaf(d[i][4 * j + 1], kSumFactor, b0),
                      fmaf(d[i][4 * j + 2], kSumFactor, b1), fmaf(d[i][4 * j + 3], kSumFactor, b1)};
      });
    release(cosines);
    release(slot);
    next();
  }

  // float32: 16 rows from row0 on, slots from slot0 on: a lane has rows g and g + 8, columns 8j +
  // 2p and + 1. Even rows keep the first column, odd ones the second, each with its neighbour's
  // row: pairs that lie side by side.
  template <int kN>
  __device__ __forceinline__ void store(const GemmItem& it, int row0, int slot0,
                                        const float (&d)[kN / 2]) {
    const int lane = threadIdx.x % 32, row = lane / 4;
    const bool odd = row & 1;
    const RowFactors f = factors(it, row0);
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
      const float4 v = f.of({d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]});
      const float r0 = __shfl_xor_sync(~0u, odd ? v.x : v.y, 4);
      const float r1 = __shfl_xor_sync(~0u, odd ? v.z : v.w, 4);
      const int column = slot0 + 8 * j + 2 * (lane % 4) + odd;
      if (column >= it.valid) continue;
      int64_t first = (int64_t{it.slot0} + column) * g.rows + row0 + (row & ~1);
      if constexpr (S::kIsSliced) first += int64_t{it.slice} * g.num_slots * g.rows;
      float* y = static_cast<float*>(g.y) + first;
      *reinterpret_cast<float2*>(y) = odd ? float2{r0, v.y} : float2{v.x, r0};
      *reinterpret_cast<float2*>(y + 8) = odd ? float2{r1, v.w} : float2{v.z, r1};
    }
  }
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    gemm_kernel(const __grid_constant__ GemmParams g) {
  extern __shared__ char raw[];
  GemmBlock<S>(g, aligned_1024(raw)).work(S::kIsTiles ? 128 : 129);
}

}  // namespace nibble::ops::gpu::sm90
