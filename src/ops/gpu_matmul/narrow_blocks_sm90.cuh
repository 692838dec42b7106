// NVFP4 in gemm_narrow_sm90.cuh: codes are multiplied without their scales, which meet the sums of
// blocks of 16 k in float32. Columns of B are the first 16 of 32 k with zeros for the others, and
// the last 16, in the order of K in which half_codes() makes codes; of 8 columns a lane has two of
// the same 16 k. Each block makes those of its own groups from bf16: they are few, and no block
// waits for another.
#pragma once

#include <cmath>

#include "ops/gpu_matmul/narrow_tiles_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

struct BlockColumns {
  static constexpr bool kIsMade = false, kRebases = false, kHasBlocks = true;
  static constexpr int kPlanes = 2, kOfRow = 2, kUnitBytes = cuda::kNvfp4UnitBytes;
  static constexpr float kBack = 0x1p-1f;  // codes are 2^6 too small, columns 2^7 too large
  const uint16_t* x;                       // [rows, K] bf16
  const float* row_scales;                 // of the weights
  int cols;                                // K
  int usual_rows;                          // that most experts have, or fewer
};
// For experts that `slots` rows meet: the mean and, as at random, a deviation.
inline BlockColumns block_columns(const Weight& weight, const uint16_t* x, int64_t slots) {
  const double mean = static_cast<double>(slots) / weight.experts;
  return {x, weight.row_scales, static_cast<int>(weight.cols),
          static_cast<int>(std::ceil(mean + std::sqrt(mean)))};
}

// Rows of activations whose columns stand in shared memory together. Four rows are 8 columns; those
// of groups of few rows share them.
struct HeldRows {
  static constexpr int kMost = 128;
  struct Row {
    int row;          // of x
    uint32_t to;      // its first column
    int columns;      // of its group
    uint32_t factor;  // where that goes
  } rows[kMost];
  uint32_t largest[kMost];  // magnitude, in bf16's bits

  // Where a group's rows begin behind so many places.
  static __device__ __forceinline__ int place(int places, int rows) {
    return places % 4 + rows <= 4 ? places : (places + 3) / 4 * 4;
  }
};

// By all threads that multiply: rows n .. of those held are a group's, from a place on. `to`: the
// columns of the place's four; `factors`: of place 0.
template <class Op>
__device__ __forceinline__ void hold_rows(HeldRows& held, int n, const Group& group, int place,
                                          const Op& op, uint32_t to, uint32_t factors) {
  const int i = threadIdx.x;
  if (i >= group.rows) return;
  const int token = place % 4 + i;
  held.rows[n + i] = {op.row_of(group.row0 + i),
                      to + token / 4 * 128 + (token % 4 / 2 * 4 + token % 2) * 16,
                      group_columns<BlockColumns>(group), factors + (place + i) * 4};
  held.largest[n + i] = 0;
}

// Columns and factors of n rows, by all warps that multiply, behind a barrier: a quad's lanes take
// 32 k of a row, the quads of a warp eight rows. Columns from from.cols to `cols` are zeros. A
// barrier is to follow.
__device__ __forceinline__ void make_rows(HeldRows& held, int n, const BlockColumns& from,
                                          int cols) {
  constexpr int kSteps = 4, kStretch = kSteps * kGemvWarps * 32;  // of k
  constexpr uint32_t kFirst = 0x00ff00ff;                         // bytes of the first 16 k
  const int lane = threadIdx.x % 32, my_k = threadIdx.x / 32 * 32;
  for (int first = 0; first < n; first += 8) {
    const int i = min(first + lane / 4, n - 1);
    const bool is_mine = first + lane / 4 < n;
    const HeldRows::Row row = held.rows[i];
    const uint16_t* const x = from.x + int64_t{row.row} * from.cols + lane % 4 * 8;
    uint4 v[kSteps];
    const auto load = [&](int start) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int k = start + s * kGemvWarps * 32;
        v[s] = k < from.cols ? __ldcg(reinterpret_cast<const uint4*>(x + k)) : uint4{};
      }
    };
    uint32_t most = 0;
#pragma unroll 1
    for (int start = my_k; start < cols; start += kStretch) {
      load(start);
#pragma unroll
      for (const uint4& eight : v) most = max(most, largest_of(eight));
    }
    most = max(most, __shfl_xor_sync(~0u, most, 1));
    most = max(most, __shfl_xor_sync(~0u, most, 2));
    if (is_mine && lane % 4 == 0) atomicMax(&held.largest[i], most);
    narrow_barrier();
    const uint32_t exponent = exponent_of(held.largest[i]);
    const float inverse = inverse_of(exponent);
    if (my_k == 0 && is_mine && lane % 4 == 0)
      cuda::store_shared_float(row.factor, factor_of(exponent, BlockColumns::kBack));
    const uint32_t piece = row.columns * 16,
                   low = row.columns * cols;  // bytes of 16 k, of a matrix
#pragma unroll 1
    for (int start = my_k; start < cols; start += kStretch) {
      if (cols > kStretch) load(start);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int k = start + s * kGemvWarps * 32;
        if (k >= cols) break;
        const PairWords even(v[s], 0, inverse, true), odd(v[s], 1, inverse, true);
        if (!is_mine) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t at = row.to + (k / 16 + half) * piece + lane % 4 * 4;
          const auto store = [&](uint32_t to, uint32_t of_even, uint32_t of_odd) {
            const uint32_t word = cuda::byte_permute(of_even, of_odd, half == 0 ? 0x6420 : 0x7531);
            cuda::store_shared_float(to, __uint_as_float(word & kFirst));
            cuda::store_shared_float(to + 32, __uint_as_float(word & ~kFirst));
          };
          store(at, even.high, odd.high);
          store(at + low, even.low, odd.low);
        }
      }
    }
  }
}

// A lane's words of a unit, and the E4M3 scales of rows g and g + 8: of the blocks of 16 k whose
// columns it has, the first or the last of each 32 k.
struct BlockCodes {
  uint4 words;
  uint32_t scales;
  __device__ __forceinline__ explicit BlockCodes(uint32_t unit)
      : words(cuda::load_shared_16(unit + threadIdx.x % 32 * 16)) {
    const uint2 all = cuda::load_shared_8(unit + 512 + threadIdx.x % 32 / 4 * 8);
    scales = cuda::byte_permute(all.x, all.y, threadIdx.x % 2 == 0 ? 0x5410 : 0x7632);
  }
};
// Of BlockCodes::scales byte i, 2^-120 times its value: E4M3's bits in a float32's.
template <int kByte>
__device__ __forceinline__ float block_scale(uint32_t scales) {
  const uint32_t at_20 = kByte == 3 ? scales >> 4 : scales << (20 - 8 * kByte);
  return __uint_as_float(at_20 & 0x07f00000u);
}
// The bits of eight codes where E4M3 has 2^-6 of their values.
__device__ __forceinline__ void half_codes(uint32_t w, uint32_t& even, uint32_t& odd) {
  even = (w * 16 & 0x80808080u) | (w * 4 & 0x1c1c1c1cu);
  odd = (w & 0x80808080u) | (w >> 2 & 0x1c1c1c1cu);
}

// A tile's products: sum[4 q ..] are row g of tokens 4 q + p / 2 * 2 and the next, then g + 8 of
// them, of this lane's blocks. Of few columns a whole unit is multiplied at a time, of more there
// is room for sums of one half. `low`: from the matrix of high to that of low.
template <int kN, class Ring>
__device__ __forceinline__ void multiply_blocks(float (&sum)[kNarrowColumns / 2], Ring& ring,
                                                int chunks, uint32_t x, uint32_t low) {
  constexpr int kTogether = kN <= 16 ? 2 : 1;  // halves of a unit, of 32 k
  float d[kTogether][kNarrowColumns / 2] = {};
  uint32_t a[2][4];
  float scale[kTogether][2] = {};
  const auto add = [&] {
#pragma unroll
    for (int half = 0; half < kTogether; ++half)
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) {
        asm volatile("" : "+f"(d[half][i]));  // not before the wait
        sum[i] = fmaf(d[half][i], scale[half][i / 2 % 2], sum[i]);
      }
  };
  const auto multiply = [&](const uint32_t(&half)[4], float(&to)[kNarrowColumns / 2]) {
    wgmma_narrow<kN, NarrowTypes::kE4m3E4m3>(to, half, x, 0);
    wgmma_narrow<kN, NarrowTypes::kE4m3E5m2>(to, half, x + low, 1);
    x += 2 * kN;
  };
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sum[i] = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const uint32_t at = ring.take();
#pragma unroll
    for (int first = 0; first < 2 * Ring::kUnits; first += kTogether) {
      uint32_t(*const to)[4] = a + first % 2;
      uint32_t scales[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int half = (first + i) % 2;
        const BlockCodes codes(at + (first + i) / 2 * cuda::kNvfp4UnitBytes);
        half_codes(half == 0 ? codes.words.x : codes.words.z, to[i][0], to[i][2]);
        half_codes(half == 0 ? codes.words.y : codes.words.w, to[i][1], to[i][3]);
        scales[i] = half == 0 ? codes.scales : codes.scales >> 16;
      }
      wgmma_wait<0>();
      add();
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kTogether; ++i) multiply(to[i], d[i]);
      wgmma_commit();
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        scale[i][0] = block_scale<0>(scales[i]), scale[i][1] = block_scale<1>(scales[i]);
    }
    ring.release();
  }
  wgmma_wait<0>();
  add();
}

// The lanes of an even and an odd p add up their blocks: that of even p has row g, the other g + 8;
// then those of an even and an odd g share out the two tokens. `row`: the first of two;
// `first_place`: of the group in the columns, whose factors are from `factors` on.
template <int kN, class Op>
__device__ __forceinline__ void store_blocks(const float (&sum)[kNarrowColumns / 2],
                                             const Group& group, int first_place, int row,
                                             uint32_t bias, float2 back, uint32_t factors,
                                             const Op& op) {
  const int lane = threadIdx.x % 32;
  const bool first = lane % 2 == 0, even = lane / 4 % 2 == 0;
#pragma unroll
  for (int q = 0; q < kN / 8; ++q) {
    float mine[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float g = sum[4 * q + i], g8 = sum[4 * q + 2 + i];
      mine[i] = (first ? g : g8) + __shfl_xor_sync(~0u, first ? g8 : g, 1);
    }
    const float other =
        __shfl_xor_sync(~0u, even ? mine[1] : mine[0], 4);  // the next or last row's
    const float2 v = even ? float2{mine[0], other} : float2{other, mine[1]};
    const int place = 4 * q + lane % 4 / 2 * 2 + (even ? 0 : 1), token = place - first_place;
    if (token < 0 || token >= group.rows) continue;
    const float factor = __uint_as_float(cuda::load_shared_4(factors + place * 4));
    op.store(group.row0 + token, row,
             finite(v.x * 0x1p120f * back.x * factor) + __uint_as_float(bias << 16),
             finite(v.y * 0x1p120f * back.y * factor) + __uint_as_float(bias & 0xffff0000));
  }
}

}  // namespace nibble::ops::gpu::sm90
