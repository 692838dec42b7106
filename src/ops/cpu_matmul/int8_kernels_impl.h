// Bodies of Int8Kernels over a vector type S; see float_kernels_impl.h for how it is compiled.
// S: Int (kLanes 32-bit lanes, four codes each), Vec (kLanes floats);
//   decode(line, low, high)  kLanes rows' codes of 8 consecutive k: the first four, the last four
//   nibbles(line, low, high)  the same, not looked up
//   load_int4_groups(at, scale, zero)  of kLanes rows (formats/int4.h)
//   dot<N, kLines>(w, x, start, sums)  start + sum over 4 kLines k of w x, for N int8 x, 32 bytes
//     from one to the next; start: kCodeOffset's
//
// Bytes: 272 per panel and block (NVFP4: 288), once for all inputs (tiles after the first find them
// in L2).
// Reached on 2 cores of an AMD EPYC (Zen 4, AVX-512 VNNI; register peak 872 GOP/s), 2026-11-21,
// beside other work: one input 30.5 GB/s, 87% of the read bandwidth of the same run (float path:
// 54%), 8 tokens 81%, 16 tokens 84%. 16 inputs a tile, one thread, 2026-11-21: 357 of 436 GOP/s on
// that EPYC, 460 of 730 on a Xeon with AMX. The rest of the peak: of 10 operations on the
// multipliers' ports per block and input, 2 scale its sum.
// NVFP4 on 2 cores of an EPYC (Zen 5), 2026-11-23, beside other work, Qwen3-8B's shapes: one token
// 48 to 62 GB/s where reads gave 46 to 70, 512 tokens 1,000 to 1,080 GOP/s (MXFP4 1,190;
// llama.cpp's Q4_0 by turns 450 to 520): docs/lab/cpu-products.md. Lost: intrinsics under g++ 12,
// which does not fold the bytes' broadcast (330 and 340; clang 14 350 and 430 to 530: see
// Avx512Vnni::dot); one sum after the other (380 to 440 on the Xeon); eight abreast, whose
// accumulators no longer fit the registers (310 on the EPYC).
#pragma once

#include <bit>
#include <cmath>

#include "cpu/simd.h"
#include "formats/format.h"
#include "formats/int8.h"
#include "ops/cpu_matmul/int8_kernels.h"

namespace nibble::ops {

template <typename S, Format kFormat>
struct PanelProduct {
  using Int = typename S::Int;
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes, kParts = int8_parts(kFormat);
  static constexpr int64_t kTileBytes = int8_tile_bytes(kParts);
  static constexpr bool kIsInt4 = kFormat == Format::kInt4G32 || kFormat == Format::kInt4G128;
  static constexpr int kBlocksOfScale = kFormat == Format::kInt4G128 ? 4 : 1;
  // Of a block.
  static constexpr int64_t kScaleBytes =
      kIsInt4 ? 4 * kPanelRows / kBlocksOfScale : kParts * kPanelRows;
  // How far ahead weights are fetched into L2: any nearer and DRAM is not hidden, into L1 and its
  // few buffers are held for all that time.
  static constexpr int64_t kAhead = 8192, kScalesAhead = kAhead / 256 * kScaleBytes;

  static Int8Step step_of(const float* x, int64_t n) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    return int8_step(largest);
  }

  // One block of vector m.
  static void encode_block(const float* x, const Int8Step& step, int size, int m, std::byte* tile) {
    auto* q = reinterpret_cast<int8_t*>(tile) + 32 * m;
    auto* steps = reinterpret_cast<float*>(tile + 32 * size);
    auto* offsets = reinterpret_cast<int32_t*>(steps + size);
    int32_t codes[32] = {}, sums[kParts] = {};
    if (step.inverse != 0)
      for (int i = 0; i < 32; ++i)
        codes[i] = static_cast<int32_t>(__builtin_rintf(x[i] * step.inverse));
    for (int i = 0; i < 32; ++i) q[i] = static_cast<int8_t>(codes[i]);
    for (int p = 0; p < kParts; ++p)
      for (int i = 0; i < 32 / kParts; ++i) sums[p] += codes[p * 32 / kParts + i];
    steps[m] = step.step / 2;
    for (int p = 0; p < kParts; ++p)
      offsets[p * size + m] =
          kIsInt4 ? std::bit_cast<int32_t>(static_cast<float>(sums[p])) : -S::kCodeOffset * sums[p];
  }

  static void encode(const float* x, int64_t blocks, int size, int m, std::byte* tile) {
    for (int64_t b = 0; b < blocks; ++b, x += 32, tile += size * kTileBytes)
      encode_block(x, step_of(x, 32), size, m, tile);
  }

  static void encode_row(const float* x, int64_t blocks, int size, int m, std::byte* tile) {
    const Int8Step step = step_of(x, 32 * blocks);
    for (int64_t b = 0; b < blocks; ++b, x += 32, tile += size * kTileBytes)
      encode_block(x, step, size, m, tile);
  }

  // kLanes rows of the panel, from row `row` on, against M vectors.
  template <int M, bool kFetch>
  static void rows(const PanelTile& t, int row) {
    constexpr int kBeside = M % 4 == 0 ? 4 : M % 3 == 0 ? 3 : M;  // vectors whose sums run abreast
    Vec acc[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) acc[m] = S::zero();
    const uint8_t *codes = t.codes + 4 * row, *scales = t.scales + (kIsInt4 ? 4 : 1) * row;
    const std::byte* x = t.tile;
    for (int64_t b = 0; b < t.blocks; ++b) {
      Int w[8];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        if (kFetch) __builtin_prefetch(codes + kAhead + 64 * i, 0, 1);
        if constexpr (kIsInt4)
          S::nibbles(codes + 64 * i, w[2 * i], w[2 * i + 1]);
        else
          S::decode(codes + 64 * i, w[2 * i], w[2 * i + 1]);
      }
      if (kFetch && b % (64 / kScaleBytes) == 0) __builtin_prefetch(scales + kScalesAhead, 0, 1);
      Vec ws[2];
      load_scales(scales, ws);
      const auto* steps = reinterpret_cast<const float*>(x + 32 * M);
      const auto* offsets = reinterpret_cast<const int32_t*>(steps + M);
#pragma GCC unroll 16
      for (int m = 0; m < M; m += kBeside)
        add_block<M, kBeside>(w, ws, reinterpret_cast<const int8_t*>(x) + 32 * m, steps + m,
                              offsets + m, acc + m);
      codes += 256, x += M * kTileBytes;
      if (kBlocksOfScale == 1 || b % kBlocksOfScale == kBlocksOfScale - 1)
        scales += kScaleBytes * kBlocksOfScale;
    }
    const Vec bias = t.bias == nullptr ? S::zero() : S::load_bf16(t.bias + row);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m)  // a constant bound: acc stays in registers
      if (m < t.tokens) S::store(t.y + m * t.ldy + row, finish(t, row, acc[m], bias));
  }

  // Of one block; INT4's zero points are the second.
  SIMD_FN void load_scales(const uint8_t* at, Vec* ws) {
    if constexpr (kIsInt4)
      S::load_int4_groups(at, ws[0], ws[1]);
    else if constexpr (kFormat == Format::kNvfp4)
      ws[0] = S::load_e4m3(at), ws[1] = S::load_e4m3(at + kPanelRows);
    else
      ws[0] = S::scales(at);
  }

  // A block of weights w, of scales ws, by N of a tile's M vectors.
  template <int M, int N>
  SIMD_FN void add_block(const Int* w, const Vec* ws, const int8_t* x, const float* steps,
                         const int32_t* offsets, Vec* acc) {
    Int sums[N];
    static constexpr int32_t kNothing[4] = {};
    S::template dot<N, 8 / kParts>(w, x, kIsInt4 ? kNothing : offsets, sums);
    if constexpr (kIsInt4) {
      const auto* q = reinterpret_cast<const float*>(offsets);
      const Vec less = S::sub(S::zero(), ws[1]);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j)
        acc[j] = S::fma(S::fma(less, S::set1(q[j]), S::to_float(sums[j])),
                        S::mul(ws[0], S::set1(steps[j])), acc[j]);
    } else if constexpr (kParts == 1) {
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j)
        acc[j] = S::fma(S::to_float(sums[j]), S::mul(*ws, S::set1(steps[j])), acc[j]);
    } else {
      Vec first[N];
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) first[j] = S::mul(S::to_float(sums[j]), ws[0]);
      S::template dot<N, 4>(w + 4, x + 16, offsets + M, sums);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j)
        acc[j] = S::fma(S::fma(S::to_float(sums[j]), ws[1], first[j]), S::set1(steps[j]), acc[j]);
    }
  }

  SIMD_FN Vec finish(const PanelTile& t, int row, Vec sum, Vec bias) {
    if constexpr (kFormat == Format::kNvfp4)
      return S::fma(sum, S::mul(S::load(t.row_scales + row), S::set1(S::kE4m3Unit)), bias);
    else if constexpr (kIsInt4)
      return S::fma(sum, S::set1(2), bias);
    else
      return S::add(sum, bias);
  }

  template <int M>
  static void panel(const PanelTile& t) {
    static_assert(M <= S::kMostTokens);
    for (int row = 0; row < kPanelRows; row += kLanes) {
      if (row == 0 && t.from_memory)
        rows<M, true>(t, row);
      else
        rows<M, false>(t, row);
    }
  }

  static void multiply(const PanelTile& t) {
    switch (t.tile_size) {
      case 1:
        return panel<1>(t);
      case 2:
        return panel<2>(t);
      case 3:
        return panel<3>(t);
      case 4:
        return panel<4>(t);
    }
    if constexpr (S::kMostTokens >= 8) {
      if (t.tile_size == 6) return panel<6>(t);
      if (t.tile_size == 8) return panel<8>(t);
    }
    if constexpr (S::kMostTokens >= 16) {
      if (t.tile_size == 12) return panel<12>(t);
      return panel<16>(t);
    }
  }
};

template <typename S, Format kFormat>
constexpr Int8Kernels int8_kernels_of() {
  using Product = PanelProduct<S, kFormat>;
  return {.most_tokens = S::kMostTokens,
          .parts = Product::kParts,
          .encode = Product::encode,
          .encode_row = Product::encode_row,
          .multiply = Product::multiply};
}

template <typename S>
constexpr Int8KernelSet make_int8_kernels() {
  return {.mxfp4 = int8_kernels_of<S, Format::kMxfp4>(),
          .nvfp4 = int8_kernels_of<S, Format::kNvfp4>(),
          .int4_g32 = int8_kernels_of<S, Format::kInt4G32>(),
          .int4_g128 = int8_kernels_of<S, Format::kInt4G128>()};
}

}  // namespace nibble::ops
