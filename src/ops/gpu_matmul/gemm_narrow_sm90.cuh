// Experts that some rows of activations each meet, by wgmma in FP8 that loses next to nothing:
// y[slot] = x[row of slot] W_e^T + b_e. For steps of a few hundred tokens, whose experts' weights
// are to stream at the memory's speed while each is expanded once for all of an expert's rows.
//
// A weight times its block's scale, m 2^(s - 127), becomes m 2^(s - 115) in E5M2, which holds it
// exactly from s = 100 (2^-27) to 128; below, it is off by 2^-29 at most, above, NaN. Eight of them
// come by PRMT from eight bytes, the line of the block's scale in a table in shared memory.
// A row of activations is two E4M3 a column (e4m3_pairs.h), of which every block makes some rows
// while weights come; then all blocks meet. Columns 2 t and 2 t + 1 of B are high and low of token
// t. Under --activations fp8 it is one, made by a kernel before, and weights are relative to the
// least scale of their row (row_exponents.h), so that none is off or too large.
//
// Sums: one chain over K in wgmma's accumulator, which keeps about 14 bits.
//
// A group is up to 32 columns of B of one expert. Each block takes a contiguous share of the tiles
// of 64 rows of all groups, equal by what a tile costs with its group's rows; experts of many rows
// and of few take turns, so that the activations of a block's groups stand in shared memory
// together. Each of four warpgroups takes every fourth tile, a warp 16 rows of it; a warp besides
// brings it to shared memory by the copy engine, so that those that multiply do nothing else.
// E4M3 order of K: see gemm_fp8_sm90.cuh.
//
// gpt-oss-120b's moe_up and moe_down take 287 and 165 us with 256 tokens (H200, 2026-11-22). Lost:
// deeper rings, smaller chunks, f16, groups of 48 columns: docs/lab/experts-of-a-batch.md.
#pragma once

#include "cuda/arrivals.cuh"
#include "cuda/bf16.cuh"
#include "cuda/fp8.cuh"
#include "cuda/mma_digits.cuh"
#include "ops/gpu_matmul/e4m3_pairs.h"
#include "ops/gpu_matmul/gemm_fp8_sm90.cuh"
#include "ops/gpu_matmul/gemv.cuh"

namespace nibble::ops::gpu::sm90 {

inline constexpr int kNarrowGroupsOfWarps = 4;
// A warp for each of four warpgroups fetches; registers of a thread of either kind, of 512 for four
// that multiply and one that fetches.
inline constexpr int kNarrowThreads = kGemvThreads + kNarrowGroupsOfWarps * 32;
inline constexpr int kNarrowRegisters = 112, kFetchRegisters = 32;
template <int kUnits>
inline constexpr int kNarrowStages = 10 / kUnits;
inline constexpr int kNarrowTable = 257 * 8;  // and a line of ones
inline constexpr int kNarrowLeast = 100;      // the line that a row's least scale reads
inline constexpr int kNarrowColumns = 32;     // of activations in a group, at most

// Rows of activations as columns of B, kOfRow each: codes [rows, K / 16, kOfRow, 16].
struct PairColumns : E4m3Pairs {
  static constexpr int kOfRow = 2;
  static constexpr bool kRebases = false;  // weights are not relative to a row's least scale
  const uint16_t* x;                       // [rows, K] bf16, what they are made of
  int rows;
  uint32_t* counter;  // zero
  __device__ __forceinline__ float factor(int row) const { return __ldcg(factors + row); }
};
struct E4m3Columns {
  static constexpr int kOfRow = 1;
  static constexpr bool kRebases = true;
  const uint8_t* codes;
  const float* scales;  // [rows], or none: scale_all
  float scale_all;
  const uint8_t* row_exponents;  // of the weight
  __device__ __forceinline__ float factor(int row) const {
    return scales == nullptr ? scale_all : __ldcg(scales + row);
  }
};
template <class X>
inline constexpr int kNarrowGroupRows = kNarrowColumns / X::kOfRow;
template <class X>
__device__ __forceinline__ int group_columns(const Group& group) {
  return (X::kOfRow * group.rows + 7) / 8 * 8;
}

// What a tile costs: its bytes, and a thirtieth of that for every 8 columns of B.
template <class X>
struct NarrowCost {
  static constexpr bool kPaired = true;
  static __device__ __forceinline__ int of(int rows) {
    return rows == 0 ? 0 : 30 + (X::kOfRow * rows + 7) / 8;
  }
};

// Shared memory: rings from 0 on, then these.
struct NarrowMemory {
  uint32_t table, factors, x, end;
  int columns;  // of activations at a time
};

// d[64][N] (+)= a[64][32] b[N][32]^T, N <= 32, a in E5M2, b in E4M3: see wgmma_e4m3.
template <int kN>
__device__ __forceinline__ void wgmma_narrow(float (&d)[kNarrowColumns / 2], const uint32_t (&a)[4],
                                             uint32_t b, int accumulate);
#define NIBBLE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NIBBLE_O8_D4 NIBBLE_O8, NIBBLE_D4(8)
#define NIBBLE_WGMMA_NARROW(n, regs, outs, a, b, acc)                                          \
  template <>                                                                                  \
  __device__ __forceinline__ void wgmma_narrow<n>(                                             \
      float(&d)[kNarrowColumns / 2], const uint32_t(&av)[4], uint32_t bd, int accumulate) {    \
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nmov.b64 b, {" b ", 8};\nsetp.ne.b32 p, " acc \
                 ", 0;\n"                                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e5m2.e4m3 {" regs "}, {" a    \
                 "}, b, p, 1, 1;\n}"                                                           \
                 : outs                                                                        \
                 : "r"(av[0]), "r"(av[1]), "r"(av[2]), "r"(av[3]), "r"(bd), "r"(accumulate));  \
  }
NIBBLE_WGMMA_NARROW(8, "%0,%1,%2,%3", NIBBLE_D4(0), "%4,%5,%6,%7", "%8", "%9")
NIBBLE_WGMMA_NARROW(16, NIBBLE_R8, NIBBLE_O8, "%8,%9,%10,%11", "%12", "%13")
NIBBLE_WGMMA_NARROW(24, NIBBLE_R8 ",%8,%9,%10,%11", NIBBLE_O8_D4, "%12,%13,%14,%15", "%16", "%17")
NIBBLE_WGMMA_NARROW(32, NIBBLE_R16, NIBBLE_O16, "%16,%17,%18,%19", "%20", "%21")

// B as [K / 16][N][16] bytes, from `address` on: the low word of its descriptor; the high one says
// that 8 columns take 128 bytes.
template <int kN>
__device__ __forceinline__ uint32_t columns_of(uint32_t address) {
  return (address & 0x3ffff) >> 4 | kN << 16;
}

// Byte i of line s of the table: E5M2 of the e2m1 magnitude i times 2^(s - 115), its sign set.
__device__ __forceinline__ uint32_t line_byte(int s, int i) {
  if (s > 128) return 0xff;
  const int twice = i < 4 ? i : (i == 4 ? 4 : i == 5 ? 6 : i == 6 ? 8 : 12);
  // 2^(s - 116): below 2^-17 everything rounds to zero or 2^-16.
  const float v = __int_as_float(max(127 + s - 116, 1) << 23) * static_cast<float>(twice);
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(v));
  return 0x80 | (pair & 0xff);
}

// Of the warps that multiply.
__device__ __forceinline__ void narrow_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kGemvThreads) : "memory");
}

// A lane's words of a unit, and the scales of rows g and g + 8.
struct NarrowCodes {
  uint4 words;
  uint32_t scales;
  __device__ __forceinline__ explicit NarrowCodes(uint32_t unit)
      : words(cuda::load_shared_16(unit + threadIdx.x % 32 * 16)),
        scales(cuda::load_shared_4(unit + 512 + threadIdx.x % 32 / 4 * 4)) {}
};

// The lines of a unit: rows g and g + 8 of its first block, then of its second.
struct NarrowLines {
  uint2 v[4];
  __device__ __forceinline__ NarrowLines(const uint32_t (&tables)[2], uint32_t scales) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = cuda::load_shared_8(at_eighth(scales, i, tables[i % 2]));
  }
};

// A warpgroup's chunks on their way, of four row tiles each. Four lanes of the warp that fetches
// for it, one a row tile, fill slots; its warps empty them.
template <int kUnits>
class NarrowRing {
 public:
  static constexpr int kTileBytes = kUnits * cuda::kUnitBytes, kStages = kNarrowStages<kUnits>;
  static constexpr int kBytes = kStages * 4 * kTileBytes;
  static constexpr int kBarriers = 2 * kStages;  // a slot is filled, is empty

  __device__ __forceinline__ NarrowRing(uint32_t memory, uint32_t barriers, int warpgroup, int tile)
      : chunk_(memory + warpgroup * kBytes + tile * kTileBytes),
        barrier_(barriers + warpgroup * kBarriers * 8) {}
  // By one lane of a warpgroup's.
  __device__ __forceinline__ void init() const {
#pragma unroll
    for (int i = 0; i < kBarriers; ++i) barrier_init(barrier_ + i * 8, 4);
    cuda::barrier_init_fence();
  }
  __device__ __forceinline__ void fill(const uint8_t* from) {
    barrier_wait(barrier_ + 8, phase_ ^ 1);
    cuda::bulk_copy(chunk_, from, kTileBytes, barrier_, cuda::evict_first());
    advance();
  }
  // Waits for the next chunk; its shared address.
  __device__ __forceinline__ uint32_t take() const {
    barrier_wait(barrier_, phase_);
    return chunk_;
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier_ + 8);
    advance();
  }

 private:
  __device__ __forceinline__ void advance() {
    chunk_ += 4 * kTileBytes;
    barrier_ += 16;
    if (++slot_ < kStages) return;
    slot_ = 0;
    phase_ ^= 1;
    chunk_ -= kBytes;
    barrier_ -= kBarriers * 8;
  }

  uint32_t chunk_, barrier_, phase_ = 0;
  int slot_ = 0;
};

// Rows of activations in two E4M3 a column, by all warps that multiply of all blocks. Two warps
// take a row, a lane 8 columns of 256: until the largest is known their bf16 wait in shared memory,
// each thread's in 16 bytes from `memory` on and every 16 * kGemvThreads behind.
__device__ __forceinline__ void make_columns(const PairColumns& to, int cols, uint32_t memory,
                                             uint32_t* largest) {
  constexpr int kRows = kGemvWarps / 2;  // of a block at a time
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto each = [&](const auto& do_8) {
    uint32_t at = memory + threadIdx.x * 16;
#pragma unroll 1
    for (int first = warp % 2 * 256; first < cols; first += 512, at += kGemvThreads * 16)
      do_8(first + 8 * lane, at);
  };
  const auto meet_pair = [&] { asm volatile("bar.sync %0, 64;" ::"r"(2 + warp / 2) : "memory"); };
  for (int row = blockIdx.x + warp / 2 * gridDim.x; row < to.rows; row += kRows * gridDim.x) {
    const uint16_t* const from = to.x + int64_t{row} * cols;
    each([&](int column, uint32_t at) {
      copy_16_or_zeros(at, from + min(column, cols - 8), column < cols ? 16 : 0);
    });
    asm volatile("cp.async.wait_all;" ::: "memory");
    uint32_t most = 0;  // magnitudes of bf16 order as integers do
    each([&](int, uint32_t at) {
      const uint4 v = cuda::load_shared_16(at);
      for (const uint32_t pair : {v.x, v.y, v.z, v.w})
        most = max(most, max(pair >> 16 & 0x7fff, pair & 0x7fff));
    });
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) largest[warp] = most;
    meet_pair();
    most = max(most, largest[warp ^ 1]);
    const uint32_t exponent = max(most >> 7, 16u);  // elements below 2^-111 lose bits
    const float inverse = __uint_as_float((261 - min(exponent, 254u)) << 23);
    if (warp % 2 == 0 && lane == 0)
      to.factors[row] = __uint_as_float(exponent == 255 ? 0x7fc00000 : exponent << 23) * 0x1p-19f;
    uint8_t* const codes = to.codes + int64_t{row} * 2 * cols + lane % 4 * 4;
    each([&](int column, uint32_t at) {
      const uint4 v = cuda::load_shared_16(at);
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      // Even and odd columns; of four lanes with 32 of them, lane p is to have bytes 4 p .. of
      // each.
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        uint32_t high = 0, low = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto element = [&](uint32_t pair) {
            return (odd == 0 ? cuda::bf16_lo(pair) : cuda::bf16_hi(pair)) * inverse;
          };
          const float a = element(words[2 * half]), b = element(words[2 * half + 1]);
          const uint32_t pair = cuda::e4m3_pair(a, b);
          const float2 f = cuda::values_of_f16(cuda::f16_of_e4m3(static_cast<uint16_t>(pair)));
          high |= pair << 16 * half;
          low |= cuda::e4m3_pair((a - f.x) * 16, (b - f.y) * 16) << 16 * half;
        }
        high = cuda::transpose_quad(high, ~0u);
        low = cuda::transpose_quad(low, ~0u);
        if (column >= cols) continue;
        auto* const place = reinterpret_cast<uint32_t*>(codes + column / 32 * 64 + odd * 32);
        place[0] = high;
        place[4] = low;
      }
    });
    meet_pair();  // before the next row's largest
  }
}

// A group's activations and their factors, by all warps that multiply: 8 columns of B by 64 of K a
// warp's turn. Where rows lie is asked for first, of all at the same time.
template <class X, class Op>
__device__ __forceinline__ void fetch_columns(const X& x, const Op& op, const Group& group,
                                              int units, uint32_t to, uint32_t factors) {
  constexpr int kEights = kNarrowColumns / 8;
  const int lane = threadIdx.x % 32, columns = group_columns<X>(group);
  int row_of[kEights];
#pragma unroll
  for (int i = 0; i < kEights; ++i)
    row_of[i] = op.row_of(group.row0 + min((8 * i + lane % 8) / X::kOfRow, group.rows - 1));
#pragma unroll
  for (int i = 0; i < kEights; ++i) {
    if (8 * i >= columns) break;
    const int column = 8 * i + lane % 8;
    const auto* const from =
        x.codes + (int64_t{row_of[i]} * units * 4 * X::kOfRow + column % X::kOfRow) * 16;
#pragma unroll 1
    for (int unit = threadIdx.x / 32; unit < units; unit += kGemvWarps) {
      const int piece = unit * 4 + lane / 8;
      if (column / X::kOfRow < group.rows)
        copy_16(to + (piece * columns + column) * 16, from + piece * X::kOfRow * 16);
    }
  }
  if (threadIdx.x < group.rows)
    cuda::store_shared_float(factors + threadIdx.x * 4,
                             x.factor(op.row_of(group.row0 + threadIdx.x)));
}

// One of the four row tiles of every tile of a warpgroup, one chunk after the other.
template <int kUnits, class GroupAt>
struct NarrowWalk {
  const TileMatrix& m;
  const GroupAt& group_at;
  int row_tile;
  int item, last;  // next tile of the block's share, and the share's end
  int left = 0;    // chunks of it
  int group_end = 0;
  int64_t group_from = 0;
  const uint8_t* at = nullptr;

  // The next chunk, or none.
  __device__ __forceinline__ const uint8_t* next() {
    if (left == 0) {
      if (item >= last) return nullptr;
      const int64_t tile_bytes = int64_t{m.chunks} * kUnits * cuda::kUnitBytes;
      if (item >= group_end) {
        const Group group = group_at(item);
        group_end = group.end;
        group_from = group.expert * m.expert_bytes + (row_tile - group.first_item * 4) * tile_bytes;
      }
      at = m.bytes + group_from + item * 4 * tile_bytes;
      left = m.chunks;
      item += kNarrowGroupsOfWarps;
    }
    --left;
    const uint8_t* const chunk = at;
    at += kUnits * cuda::kUnitBytes;
    return chunk;
  }
};

// The lines of scale 0 for a lane's rows g and g + 8 of a warp's tile. Where X has row exponents,
// what it says is fetched a tile ahead.
template <class X>
struct RowLines {
  uint32_t table, at[2] = {table, table}, least[2] = {};

  // row: g's.
  __device__ __forceinline__ void fetch(const X& x, uint32_t row) {
    if constexpr (X::kRebases) least[0] = x.row_exponents[row], least[1] = x.row_exponents[row + 8];
  }
  __device__ __forceinline__ void take() {
    if constexpr (X::kRebases)
#pragma unroll
      for (int i = 0; i < 2; ++i) at[i] = table + 8 * (kNarrowLeast - least[i]);
  }
  // What sums are to be multiplied by: 2^(least - 112), 112 = 127 - (115 - kNarrowLeast).
  __device__ __forceinline__ float factor(int i) const {
    return X::kRebases ? __uint_as_float(((table - at[i]) / 8 + kNarrowLeast + 15) << 23) : 1.f;
  }
};

// A tile's products with up to 32 columns of activations, from `x` on.
template <int kUnits, int kN>
__device__ __forceinline__ void multiply_tile(float (&d)[kNarrowColumns / 2],
                                              NarrowRing<kUnits>& ring, int chunks, uint32_t x,
                                              const uint32_t (&tables)[2], uint32_t ones) {
  uint32_t a[2][4];
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const uint32_t at = ring.take();
#pragma unroll
    for (int u = 0; u < kUnits; ++u, x += 4 * kN) {
      const NarrowCodes codes(at + u * cuda::kUnitBytes);
      const NarrowLines lines(tables, codes.scales);
      wgmma_wait<0>();
      expand(codes.words.x, lines.v[0], ones, a[0][0], a[0][2]);
      expand(codes.words.y, lines.v[1], ones, a[0][1], a[0][3]);
      expand(codes.words.z, lines.v[2], ones, a[1][0], a[1][2]);
      expand(codes.words.w, lines.v[3], ones, a[1][1], a[1][3]);
      wgmma_fence();
      wgmma_narrow<kN>(d, a[0], x, chunk + u > 0);
      wgmma_narrow<kN>(d, a[1], x + 2 * kN, 1);
      wgmma_commit();
    }
    ring.release();
  }
  wgmma_wait<0>();
}

// Rows `row` and `row` + 1 of a lane after an exchange with its neighbour's.
template <class X, int kN, class Op>
__device__ __forceinline__ void store_tile(const float (&d)[kNarrowColumns / 2], const Group& group,
                                           int row, uint32_t bias, uint32_t factors,
                                           const RowLines<X>& lines, const Op& op) {
  const bool even = threadIdx.x % 8 < 4;
  int mine = threadIdx.x % 4;  // addresses are made here: they would fill registers before
  asm volatile("" : "+r"(mine));
  const auto store = [&](int token, float v0, float v1) {
    const float scale = __uint_as_float(cuda::load_shared_4(factors + token * 4));
    const float2 v = {finite(v0 * scale), finite(v1 * scale)};
    const float other = __shfl_xor_sync(0xffffffff, even ? v.y : v.x, 4);
    if (token < group.rows)
      op.store(group.row0 + token, row, (even ? v.x : other) + __uint_as_float(bias << 16),
               (even ? other : v.y) + __uint_as_float(bias & 0xffff0000));
  };
#pragma unroll
  for (int q = 0; q < kN / 8; ++q) {
    if constexpr (X::kOfRow == 2) {
      store(4 * q + mine, d[4 * q] + d[4 * q + 1] * 0.0625f, d[4 * q + 2] + d[4 * q + 3] * 0.0625f);
    } else {
      const float f0 = lines.factor(0), f1 = lines.factor(1);
      store(8 * q + 2 * mine, d[4 * q] * f0, d[4 * q + 2] * f1);
      store(8 * q + 2 * mine + 1, d[4 * q + 1] * f0, d[4 * q + 3] * f1);
    }
  }
}

// Op: as grouped_gemm's. If X is made here, all blocks must run at once: see cuda::meet().
template <int kUnits, class X, class Op>
__global__ void __launch_bounds__(kNarrowThreads, 1)
    gemm_narrow(const __grid_constant__ TileMatrix m, const __grid_constant__ NarrowMemory memory,
                const X rows, const __grid_constant__ Op op) {
  extern __shared__ __align__(128) uint8_t shared[];
  using Ring = NarrowRing<kUnits>;
  __shared__ Groups<NarrowCost<X>> groups;
  __shared__ __align__(8) uint64_t barriers[kNarrowGroupsOfWarps * Ring::kBarriers];
  __shared__ uint32_t largest[kGemvWarps];
  const uint32_t base = cuda::shared_address(shared);
  const int warp = static_cast<int>(uniform(threadIdx.x / 32)), lane = threadIdx.x % 32,
            g = lane / 4;
  const uint32_t table = base + memory.table;
  const bool fetches = warp >= kGemvWarps;
  const int warpgroup = fetches ? warp - kGemvWarps : warp / 4;
  const auto ring_of = [&](int row_tile) {
    return Ring(base, cuda::shared_address(barriers), warpgroup, row_tile);
  };
  if (fetches && lane == 0) ring_of(0).init();
  for (int i = threadIdx.x; i < kNarrowTable; i += kNarrowThreads)
    shared[memory.table + i] = static_cast<uint8_t>(i < 2048 ? line_byte(i / 8, i % 8) : 1);
  const auto wait = [] {
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
  };
  if (!op.is_chosen_before) wait();

  const int experts = op.experts, tiles = m.row_tiles / 4;
  for (int e = threadIdx.x; e <= experts; e += kNarrowThreads)
    groups.offset[e] = __ldcg(op.offsets + e);
  __syncthreads();
  groups.count(experts, kNarrowGroupRows<X>);
  const auto share = [&](int block) {
    return groups.share(block, gridDim.x, experts, kNarrowGroupRows<X>, tiles);
  };
  const int end = share(blockIdx.x + lane % 2);
  const int first = uniform(__shfl_sync(~0u, end, 0)), last = uniform(__shfl_sync(~0u, end, 1));
  const auto group_at = [&](int i) {
    return groups.at(i, last, experts, kNarrowGroupRows<X>, tiles);
  };
  if (fetches) {
    fewer_registers<kFetchRegisters>();
    NarrowWalk<kUnits, decltype(group_at)> walk{m, group_at, lane, first + warpgroup, last};
    Ring ring = ring_of(lane);
    if (lane < 4)
      while (const uint8_t* chunk = walk.next()) ring.fill(chunk);
    return;
  }
  more_registers<kNarrowRegisters>();
  Ring ring = ring_of(warp % 4);
  if (op.is_chosen_before) wait();
  if constexpr (X::kOfRow == 2) {
    make_columns(rows, m.chunks * kUnits * 64, base + memory.x, largest);
    narrow_barrier();
    if (threadIdx.x == 0) cuda::meet(rows.counter, gridDim.x);
  }

  // From memory, as in mma_digits.cuh's CodeTables: ptxas would copy a constant for every PRMT.
  const uint32_t ones = cuda::load_shared_4(table + 2048);
  int item = first + warpgroup;
  float d[kNarrowColumns / 2];  // the same registers for every width
  const auto run = [&]<int kN>(const Group& group, int held) {
    const uint32_t factors = base + memory.factors + held * 4 / X::kOfRow;
    const uint32_t x = uniform(columns_of<kN>(base + memory.x + held * m.chunks * kUnits * 64));
    const auto first_row = [&] { return ((item - group.first_item) * 4 + warp % 4) * 16; };
    RowLines<X> lines{table};
    const auto fetch_lines = [&] {
      if (item < group.end) lines.fetch(rows, group.expert * m.row_tiles * 16 + first_row() + g);
    };
    fetch_lines();
    while (item < group.end) {
      const int row = first_row() + (g % 2 == 0 ? g : g + 7);
      uint32_t bias = 0;
      if (m.bias != nullptr)
        bias = *reinterpret_cast<const uint32_t*>(bias_of(m, group.expert, row));
      item += kNarrowGroupsOfWarps;
      lines.take();
      fetch_lines();
      multiply_tile<kUnits, kN>(d, ring, m.chunks, x, lines.at, ones);
      store_tile<X, kN>(d, group, row, bias, factors, lines, op);
    }
  };
  for (int begin = first; begin < last;) {
    narrow_barrier();  // of the groups before, everything has been read
    int end = begin;
    for (int held = 0; end < last;) {
      const Group group = group_at(end);
      if (held + group_columns<X>(group) > memory.columns) break;
      fetch_columns(rows, op, group, m.chunks * kUnits,
                    base + memory.x + held * m.chunks * kUnits * 64,
                    base + memory.factors + held * 4 / X::kOfRow);
      held += group_columns<X>(group);
      end = group.end;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    fence_async_proxy();
    narrow_barrier();
    for (int held = 0; begin < end;) {
      Group group = group_at(begin);
      group.end = uniform(group.end), group.rows = uniform(group.rows);
      const int columns = group_columns<X>(group);
      if (columns == 8)
        run.template operator()<8>(group, held);
      else if (columns == 16)
        run.template operator()<16>(group, held);
      else if (columns == 24)
        run.template operator()<24>(group, held);
      else
        run.template operator()<32>(group, held);
      held += columns;
      begin = group.end;
    }
  }
}

// See gemm_narrow. Of `x` op.row_of(slot) is a slot's row.
template <class X, class Op>
void launch_narrow(Ctx& cx, const Weight& weight, const X& x, const Op& op) {
  with_chunk_units<5>(weight.cols, [&]<int kUnits>() {
    const TileMatrix m = tile_matrix(weight, kUnits);
    const auto padded = [](int64_t bytes) {
      return static_cast<uint32_t>((bytes + 127) / 128 * 128);
    };
    NarrowMemory memory{};
    memory.table = padded(int64_t{kNarrowGroupsOfWarps} * NarrowRing<kUnits>::kBytes);
    memory.x = memory.table + padded(kNarrowTable);
    const int64_t declared = sizeof(Groups<NarrowCost<X>>) +
                             kNarrowGroupsOfWarps * NarrowRing<kUnits>::kBarriers * 8 +
                             kGemvWarps * 4;
    const int64_t free = cx.kernels.gpu.smem_per_block_bytes - padded(declared) - memory.x;
    // A column takes its codes and a factor, at most.
    memory.columns = static_cast<int>(std::min<int64_t>(free / (weight.cols + 4) / 8 * 8, 256));
    memory.factors = memory.x + memory.columns * static_cast<uint32_t>(weight.cols);
    memory.end = memory.factors + memory.columns * 4;
    const unsigned grid = grid_of(cx, m.row_tiles / 4 * weight.experts);
    if constexpr (X::kOfRow == 2) {  // all blocks meet; rows wait where columns are to stand
      CHECK(grid <= static_cast<unsigned>(cx.kernels.gpu.num_sms));
      CHECK((weight.cols + 511) / 512 * kGemvThreads * 16 <= memory.columns * weight.cols);
    }
    cuda::launch(cx.stream, gemm_narrow<kUnits, X, Op>,
                 {.grid = dim3(grid),
                  .block = dim3(kNarrowThreads),
                  .smem_bytes = memory.end,
                  .release = cuda::Release::kAfterWait},
                 m, memory, x, op);
  });
}
// The same of x [num_rows, cols] bf16, cols <= 4096.
template <class Op>
void launch_narrow(Ctx& cx, Scratch& scratch, const Weight& weight, const uint16_t* x,
                   int64_t num_rows, const Op& op) {
  launch_narrow(cx, weight,
                PairColumns{take_e4m3_pairs(scratch, num_rows, weight.cols), x,
                            static_cast<int>(num_rows), cx.counters},
                op);
}

}  // namespace nibble::ops::gpu::sm90
