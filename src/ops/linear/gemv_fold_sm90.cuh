// Experts that some rows of activations each meet, by wgmma in FP8 that loses next to nothing:
// y[slot] = x[row of slot] W_e^T + b_e. For steps of a few hundred tokens, whose experts' weights
// are to stream at the memory's speed while each is unfolded once for all of an expert's rows.
//
// A weight times its block's scale, m 2^(s - 127), becomes m 2^(s - 115) in E5M2, which holds it
// exactly from s = 100 (2^-27) to 128; below, it is off by 2^-29 at most, above, NaN. Eight of them
// come by PRMT from eight bytes, the line of the block's scale in a table in shared memory.
// A row of activations gets a power-of-two scale that puts its largest element into [128, 256); an
// element is the sum of two E4M3, x = high + low / 16, off by 2^-22 of the row's largest at most: a
// bf16 keeps every bit down to 2^-13 of it. Columns 2 t and 2 t + 1 of B are high and low of token
// t.
//
// Sums: one chain over K in wgmma's accumulator, which keeps about 14 bits.
//
// A group is up to 16 rows of one expert. Each block takes a contiguous share of the tiles of 64
// rows of all groups; the activations of as many groups as fit stand in shared memory at a time.
// Each of four warpgroups takes every fourth tile, a warp 16 rows of it, which it brings to shared
// memory through a ring of its own. Fold order of K: see gemm_fp8_sm90.cuh.
//
// Measured on an H200, 2026-11-22: moe_up then moe_down of gpt-oss-120b in a graph, even random
// routing, us; beside it gemv_experts (batch), turn and turn about:
//   tokens   96           128          256
//            442 (428)    474 (470)    533 (574)
// of 1.69 GB: 3.17 TB/s at 256 tokens. The sums are off by 7e-4 of the results' rms.
// Lost: two stages of A registers, of a unit or of a block each (ptxas spills, or 1% slower); a
// policy of evict_first for the ring (no faster); f16 instead (as many instructions as mma.sync).
#pragma once

#include <cuda_fp16.h>

#include "cuda/fp8.cuh"
#include "ops/linear/gemm_fp8_sm90.cuh"
#include "ops/linear/gemv.cuh"

namespace nibble::ops::gpu::sm90 {

inline constexpr int kFoldStages = 2, kFoldGroupRows = 16, kFoldGroupsOfWarps = 4;
inline constexpr int kFoldTable = 257 * 8;  // and a line of ones

struct FoldCost {
  static __device__ __forceinline__ int of(int rows) { return rows == 0 ? 0 : 1; }
};

// Shared memory: rings from 0 on, then these.
struct FoldMemory {
  uint32_t table, factors, x, end;
  int columns;  // of activations at a time
};

// d[64][N] (+)= a[64][32] b[N][32]^T, N <= 32, a in E5M2, b in E4M3: see wgmma_e4m3.
template <int kN>
__device__ __forceinline__ void wgmma_fold(float (&d)[16], const uint32_t (&a)[4], uint32_t b,
                                           int accumulate);
#define NIBBLE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NIBBLE_O8_D4 NIBBLE_O8, NIBBLE_D4(8)
#define NIBBLE_WGMMA_FOLD(n, regs, outs, a, b, acc)                                            \
  template <>                                                                                  \
  __device__ __forceinline__ void wgmma_fold<n>(float(&d)[16], const uint32_t(&av)[4],         \
                                                uint32_t bd, int accumulate) {                 \
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nmov.b64 b, {" b ", 8};\nsetp.ne.b32 p, " acc \
                 ", 0;\n"                                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e5m2.e4m3 {" regs "}, {" a    \
                 "}, b, p, 1, 1;\n}"                                                           \
                 : outs                                                                        \
                 : "r"(av[0]), "r"(av[1]), "r"(av[2]), "r"(av[3]), "r"(bd), "r"(accumulate));  \
  }
NIBBLE_WGMMA_FOLD(8, "%0,%1,%2,%3", NIBBLE_D4(0), "%4,%5,%6,%7", "%8", "%9")
NIBBLE_WGMMA_FOLD(16, NIBBLE_R8, NIBBLE_O8, "%8,%9,%10,%11", "%12", "%13")
NIBBLE_WGMMA_FOLD(24, NIBBLE_R8 ",%8,%9,%10,%11", NIBBLE_O8_D4, "%12,%13,%14,%15", "%16", "%17")
NIBBLE_WGMMA_FOLD(32, NIBBLE_R16, NIBBLE_O16, "%16,%17,%18,%19", "%20", "%21")

__device__ __forceinline__ void store_shared_4(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

// B as [K / 16][N][16] bytes, from `address` on: the low word of its descriptor; the high one says
// that 8 columns take 128 bytes.
template <int kN>
__device__ __forceinline__ uint32_t columns_of(uint32_t address) {
  return (address & 0x3ffff) >> 4 | kN << 16;
}

// Byte i of line s of the table: E5M2 of the e2m1 magnitude i times 2^(s - 115), its sign set.
__device__ __forceinline__ uint32_t fold_line_byte(int s, int i) {
  if (s > 128) return 0xff;
  const int twice = i < 4 ? i : (i == 4 ? 4 : i == 5 ? 6 : i == 6 ? 8 : 12);
  // 2^(s - 116): below 2^-17 everything rounds to zero or 2^-16.
  const float v = __int_as_float(max(127 + s - 116, 1) << 23) * static_cast<float>(twice);
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.f), "f"(v));
  return 0x80 | (pair & 0xff);
}

// Eight weights: as gemm_fp8_sm90.cuh's.
__device__ __forceinline__ void unfold(uint32_t w, uint2 line, uint32_t ones, uint32_t& low,
                                       uint32_t& high) {
  const uint32_t m = w & 0x77777777u;
  low = permute(line.x, line.y, m) - permute(ones, ones, w) * 128u;
  high = permute(line.x, line.y, m >> 16) - permute(ones, ones, w >> 16) * 128u;
}

// A lane's words of a unit, and the scales of rows g and g + 8.
struct FoldCodes {
  uint4 words;
  uint32_t scales;
  __device__ __forceinline__ explicit FoldCodes(uint32_t unit)
      : words(cuda::load_shared_16(unit + threadIdx.x % 32 * 16)),
        scales(cuda::load_shared_4(unit + 512 + threadIdx.x % 32 / 4 * 4)) {}
};
// The lines of a unit: rows g and g + 8 of its first block, then of its second.
struct FoldLines {
  uint2 v[4];
  __device__ __forceinline__ FoldLines(uint32_t table, uint32_t scales) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[i] = cuda::load_shared_8(table + permute(scales, 0, 0x4440 + i) * 8);
  }
};

// By one warp: row of `pieces` times 8 activations, at load(k), to columns `column` and + 1 of
// `columns`. Returns what products are to be multiplied by; NaN where an element is not finite.
template <typename Load>
__device__ __forceinline__ float store_columns(const Load& load, int pieces, uint32_t to,
                                               int column, int columns) {
  const int lane = threadIdx.x % 32;
  uint32_t most = 0;
#pragma unroll 6
  for (int i = lane; i < pieces; i += 32) {
    const uint4 x = load(i * 8);
    for (const uint32_t pair : {x.x, x.y, x.z, x.w})
      most = max(most, max(pair >> 16 & 0x7fff, pair & 0x7fff));
  }
  most = __reduce_max_sync(0xffffffff, most);
  // Below 2^-111 elements lose bits, so that scales stay normal numbers.
  const uint32_t exponent = max(most >> 7, 16u);
  const float inverse = __uint_as_float((261 - min(exponent, 254u)) << 23);
#pragma unroll 4
  for (int i = lane; i < pieces; i += 32) {  // whole blocks of four lanes
    const uint4 x = load(i * 8);
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
    // Elements 2 p and 2 p + 1 as bytes p of a word each.
    uint32_t high[2] = {}, low[2] = {};
#pragma unroll
    for (int o = 0; o < 2; ++o) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto element = [&](int w) {
          return __uint_as_float(o == 0 ? words[w] << 16 : words[w] & 0xffff0000u) * inverse;
        };
        const float a = element(2 * half), b = element(2 * half + 1);
        const uint32_t pair = cuda::e4m3_pair(a, b);
        uint32_t halves;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(pair)));
        const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&halves));
        high[o] |= pair << 16 * half;
        low[o] |= cuda::e4m3_pair((a - f.x) * 16, (b - f.y) * 16) << 16 * half;
      }
    }
#pragma unroll
    for (int o = 0; o < 2; ++o) {
      const uint32_t at = to + ((i / 4 * 2 + o) * columns + column) * 16 + lane % 4 * 4;
      store_shared_4(at, cuda::transpose_quad(high[o]));
      store_shared_4(at + 16, cuda::transpose_quad(low[o]));
    }
  }
  return exponent == 255 ? __uint_as_float(0x7fc00000) : 0x1p-12f / inverse;
}

// Op: as gemv_experts's.
template <int kUnits, class Op>
__global__ void __launch_bounds__(kGemvThreads, 1)
    gemv_fold(const __grid_constant__ TileMatrix m, const __grid_constant__ FoldMemory memory,
              const __grid_constant__ Op op) {
  constexpr int kChunkBytes = kUnits * cuda::kUnitBytes;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ __align__(8) uint64_t barriers[kGemvWarps * kFoldStages];
  __shared__ Groups<FoldCost> groups;
  const uint32_t base = cuda::shared_address(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  ChunkRing<kUnits, kFoldStages, /*kOnce=*/false> ring(base, cuda::shared_address(barriers));
  const uint32_t table = base + memory.table;
  for (int i = threadIdx.x; i < kFoldTable; i += kGemvThreads)
    shared[memory.table + i] = static_cast<uint8_t>(i < 2048 ? fold_line_byte(i / 8, i % 8) : 1);

  const auto wait = [] {
    cuda::griddep_wait();
    cuda::griddep_launch_dependents();
  };
  if constexpr (!Op::kChosenBefore) wait();
  const int experts = op.experts, tiles = m.row_tiles / 4;
  for (int e = threadIdx.x; e <= experts; e += kGemvThreads)
    groups.offset[e] = __ldcg(op.offsets + e);
  __syncthreads();
  groups.count(experts, kFoldGroupRows);
  const auto share = [&](int block) {
    return groups.share(block, gridDim.x, experts, kFoldGroupRows, tiles);
  };
  const int first = share(blockIdx.x), last = share(blockIdx.x + 1);
  const auto group_at = [&](int item) {
    return groups.at(item, last, experts, kFoldGroupRows, tiles);
  };

  // Where this warp's next chunk lies, in 16 bytes.
  int next_item = first + warp / 4, next_chunk = 0, next_end = 0;
  uint32_t next_at = 0, group_from = 0;
  const uint32_t tile_size = m.chunks * (kChunkBytes / 16);
  const auto fetch = [&](int ahead) {
    if (next_item >= last) return;
    if (next_chunk == 0) {
      if (next_item >= next_end) {
        const Group group = group_at(next_item);
        next_end = group.end;
        group_from = group.expert * static_cast<uint32_t>(m.expert_bytes / 16) +
                     (warp % 4 - group.first_item * 4) * tile_size;
      }
      next_at = group_from + next_item * 4 * tile_size;
    }
    if (lane == 0) ring.fetch(ahead, m.bytes + uint64_t{next_at} * 16);
    next_at += kChunkBytes / 16;
    if (++next_chunk == m.chunks) {
      next_chunk = 0;
      next_item += kFoldGroupsOfWarps;
    }
  };
#pragma unroll
  for (int s = 0; s < kFoldStages; ++s) fetch(s);
  if constexpr (Op::kChosenBefore) wait();

  // From memory, as in mma_digits.cuh's CodeTables: ptxas would copy a constant for every PRMT.
  const uint32_t ones = cuda::load_shared_4(table + 2048);
  int item = first + warp / 4;
  float d[16];  // the same registers for every width
  uint32_t a[2][4];
  const auto run = [&]<int kN>(const Group& group, int held) {
    const uint32_t factors = base + memory.factors + held * 2;
    const uint32_t x = columns_of<kN>(base + memory.x + held * m.chunks * kUnits * 64);
    for (; item < group.end; item += kFoldGroupsOfWarps) {
      // After the exchange below this lane holds rows `row` and `row` + 1.
      const int row = ((item - group.first_item) * 4 + warp % 4) * 16 + (g % 2 == 0 ? g : g + 7);
      uint32_t bias = 0;
      if (m.bias != nullptr)
        bias = *reinterpret_cast<const uint32_t*>(bias_of(m, group.expert, row));
#pragma unroll 1
      for (int chunk = 0; chunk < m.chunks; ++chunk) {
        const uint32_t at = ring.take();
#pragma unroll 1
        for (int u = 0; u < kUnits; ++u) {
          const FoldCodes codes(at + u * cuda::kUnitBytes);
          const FoldLines lines(table, codes.scales);
          wgmma_wait<0>();
          unfold(codes.words.x, lines.v[0], ones, a[0][0], a[0][2]);
          unfold(codes.words.y, lines.v[1], ones, a[0][1], a[0][3]);
          unfold(codes.words.z, lines.v[2], ones, a[1][0], a[1][2]);
          unfold(codes.words.w, lines.v[3], ones, a[1][1], a[1][3]);
          wgmma_fence();
          const uint32_t b = x + (chunk * kUnits + u) * 4 * kN;
          wgmma_fold<kN>(d, a[0], b, chunk + u > 0);
          wgmma_fold<kN>(d, a[1], b + 2 * kN, 1);
          wgmma_commit();
        }
        __syncwarp();
        fetch(0);
        ring.advance();
      }
      wgmma_wait<0>();
      int my_token = lane % 4;  // addresses are made here: they would fill registers in the loop
      asm volatile("" : "+r"(my_token));
#pragma unroll
      for (int q = 0; q < kN / 8; ++q) {
        const int token = 4 * q + my_token;
        const float scale = __uint_as_float(cuda::load_shared_4(factors + token * 4));
        const float2 v = {finite((d[4 * q] + d[4 * q + 1] * 0.0625f) * scale),
                          finite((d[4 * q + 2] + d[4 * q + 3] * 0.0625f) * scale)};
        const float other = __shfl_xor_sync(0xffffffff, g % 2 == 0 ? v.y : v.x, 4);
        if (token < group.rows)
          op.store(group.row0 + token, row,
                   (g % 2 == 0 ? v.x : other) + __uint_as_float(bias << 16),
                   (g % 2 == 0 ? other : v.y) + __uint_as_float(bias & 0xffff0000));
      }
    }
  };
  const auto columns = [](const Group& group) { return (2 * group.rows + 7) / 8 * 8; };
  for (int begin = first; begin < last;) {
    __syncthreads();              // of the groups before, everything has been read
    int end = begin, row = warp;  // rows of all groups go around the warps
    for (int held = 0; end < last;) {
      const Group group = group_at(end);
      if (held + columns(group) > memory.columns) break;
      const uint32_t x = base + memory.x + held * m.chunks * kUnits * 64;
      for (; row < group.rows; row += kGemvWarps) {
        const float factor = store_columns([&](int k) { return op.load(group.row0 + row, k); },
                                           m.chunks * kUnits * 8, x, 2 * row, columns(group));
        if (lane == 0) cuda::store_shared_float(base + memory.factors + held * 2 + row * 4, factor);
      }
      row -= group.rows;
      held += columns(group);
      end = group.end;
    }
    fence_async_proxy();
    __syncthreads();
    for (int held = 0; begin < end;) {
      const Group group = group_at(begin);
      if (group.rows <= 4)
        run.template operator()<8>(group, held);
      else if (group.rows <= 8)
        run.template operator()<16>(group, held);
      else if (group.rows <= 12)
        run.template operator()<24>(group, held);
      else
        run.template operator()<32>(group, held);
      held += columns(group);
      begin = group.end;
    }
  }
}

// See gemv_fold.
template <class Op>
void launch_fold(Ctx& cx, const Weight& weight, const Op& op) {
  with_chunk_units<5>(weight.cols, [&]<int kUnits>() {
    const TileMatrix m = tile_matrix(weight, kUnits);
    const auto padded = [](int64_t bytes) {
      return static_cast<uint32_t>((bytes + 127) / 128 * 128);
    };
    FoldMemory memory{};
    memory.table = padded(int64_t{kGemvWarps} * kFoldStages * kUnits * cuda::kUnitBytes);
    memory.factors = memory.table + padded(kFoldTable);
    memory.x = memory.factors + 512;
    const int64_t free = cx.kernels.gpu.smem_per_block_bytes - 6 * 1024 - memory.x;
    memory.columns = static_cast<int>(std::min<int64_t>(free / weight.cols / 8 * 8, 256));
    memory.end = memory.x + padded(memory.columns * weight.cols);
    cuda::launch(cx.stream, gemv_fold<kUnits, Op>,
                 {.grid = dim3(grid_of(cx, m.row_tiles / 4 * weight.experts)),
                  .block = dim3(kGemvThreads),
                  .smem_bytes = memory.end},
                 m, memory, op);
  });
}

}  // namespace nibble::ops::gpu::sm90
