// Products of gemm_narrow_sm90.cuh: a warp's 16 rows of a tile by up to 32 columns of activations.
#pragma once

#include "ops/gpu_matmul/narrow_columns_sm90.cuh"
#include "ops/gpu_matmul/narrow_ring_sm90.cuh"

namespace nibble::ops::gpu::sm90 {

inline constexpr int kNarrowLeast = 100;  // the line that a row's least scale reads

// d[64][N] (+)= a[64][32] b[N][32]^T, N <= 32: see wgmma_e4m3.
enum class NarrowTypes { kE5m2E4m3, kE4m3E4m3, kE4m3E5m2 };  // of a and b
template <int kN, NarrowTypes kTypes = NarrowTypes::kE5m2E4m3>
__device__ __forceinline__ void wgmma_narrow(float (&d)[kNarrowColumns / 2], const uint32_t (&a)[4],
                                             uint32_t b, int accumulate);
#define NIBBLE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define NIBBLE_O8_D4 NIBBLE_O8, NIBBLE_D4(8)
#define NIBBLE_WGMMA_NARROW(n, types, text, regs, outs, a, b, acc)                             \
  template <>                                                                                  \
  __device__ __forceinline__ void wgmma_narrow<n, NarrowTypes::types>(                         \
      float(&d)[kNarrowColumns / 2], const uint32_t(&av)[4], uint32_t bd, int accumulate) {    \
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nmov.b64 b, {" b ", 8};\nsetp.ne.b32 p, " acc \
                 ", 0;\n"                                                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." text " {" regs "}, {" a     \
                 "}, b, p, 1, 1;\n}"                                                           \
                 : outs                                                                        \
                 : "r"(av[0]), "r"(av[1]), "r"(av[2]), "r"(av[3]), "r"(bd), "r"(accumulate));  \
  }
#define NIBBLE_WGMMA_NARROW_TYPES(types, text)                                                \
  NIBBLE_WGMMA_NARROW(8, types, text, "%0,%1,%2,%3", NIBBLE_D4(0), "%4,%5,%6,%7", "%8", "%9") \
  NIBBLE_WGMMA_NARROW(16, types, text, NIBBLE_R8, NIBBLE_O8, "%8,%9,%10,%11", "%12", "%13")   \
  NIBBLE_WGMMA_NARROW(24, types, text, NIBBLE_R8 ",%8,%9,%10,%11", NIBBLE_O8_D4,              \
                      "%12,%13,%14,%15", "%16", "%17")                                        \
  NIBBLE_WGMMA_NARROW(32, types, text, NIBBLE_R16, NIBBLE_O16, "%16,%17,%18,%19", "%20", "%21")
NIBBLE_WGMMA_NARROW_TYPES(kE5m2E4m3, "e5m2.e4m3")
NIBBLE_WGMMA_NARROW_TYPES(kE4m3E4m3, "e4m3.e4m3")
NIBBLE_WGMMA_NARROW_TYPES(kE4m3E5m2, "e4m3.e5m2")

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
template <int kN, class Ring>
__device__ __forceinline__ void multiply_tile(float (&d)[kNarrowColumns / 2], Ring& ring,
                                              int chunks, uint32_t x, const uint32_t (&tables)[2],
                                              uint32_t ones) {
  uint32_t a[2][4];
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const uint32_t at = ring.take();
#pragma unroll
    for (int u = 0; u < Ring::kUnits; ++u, x += 4 * kN) {
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

}  // namespace nibble::ops::gpu::sm90
