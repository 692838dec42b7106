// Rows of a weight in kRows as float32, over a vector type S; see float_kernels_impl.h for how it
// is compiled. Every format of formats/format.h is here.
#pragma once

#include <cstring>

#include "cpu/simd.h"
#include "formats/bf16.h"
#include "formats/f16.h"
#include "formats/fp8.h"
#include "formats/fp8_block.h"
#include "formats/int4.h"
#include "formats/mxfp4.h"
#include "formats/mxfp8.h"
#include "ops/weight.h"

namespace nibble::ops {

template <typename S>
struct Decode {
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;

  // E8M0 by table: a load instead of two special cases.
  static float e8m0(uint8_t scale) {
    struct Table {
      float value[256];
      constexpr Table() : value() {
        for (int s = 0; s < 256; ++s) value[s] = e8m0_to_float(static_cast<uint8_t>(s));
      }
    };
    static constexpr Table kTable;
    return kTable.value[scale];
  }

  // out [rows, K]; where is_in_block_order(), in that order.
  static void rows(const Weight& w, float* out) {
    for (int64_t r = 0; r < w.rows; ++r)
      row(w, w.codes + r * w.row_code_bytes(), w.scales + r * w.row_scale_bytes(),
          w.row_scales == nullptr ? 1 : w.row_scales[r], out + r * w.cols);
  }

  static void row(const Weight& w, const uint8_t* codes, const uint8_t* scales, float row_scale,
                  float* out) {
    switch (w.format) {
      case Format::kF32:
        std::memcpy(out, codes, w.cols * sizeof(float));
        return;
      case Format::kBF16:
        return bf16(reinterpret_cast<const uint16_t*>(codes), w.cols, out);
      case Format::kF16:
        return f16(reinterpret_cast<const uint16_t*>(codes), w.cols, out);
      case Format::kMxfp4:
        for (int64_t b = 0; b < w.cols / kMxfp4BlockElems; ++b)
          mxfp4(codes + 16 * b, e8m0(scales[b]), out + kMxfp4BlockElems * b);
        return;
      case Format::kMxfp8:
        for (int64_t b = 0; b < w.cols / kMxfp8BlockElems; ++b)
          e4m3(codes + 32 * b, kMxfp8BlockElems, e8m0(scales[b]), out + kMxfp8BlockElems * b);
        return;
      case Format::kNvfp4:
        return nvfp4(codes, scales, w.cols, row_scale, out);
      case Format::kInt4G32:
        return int4<kMxfp4BlockElems>(codes, scales, w.cols, out);
      case Format::kInt4G128:
        return int4<128>(codes, scales, w.cols, out);
      case Format::kFp8Row:
        return e4m3(codes, w.cols, row_scale, out);
      case Format::kFp8Block:
        for (int64_t k = 0; k < w.cols; k += kFp8BlockElems) {
          float scale;
          std::memcpy(&scale, scales + k / kFp8BlockElems * 4, sizeof(scale));
          e4m3(codes + k, w.cols - k < kFp8BlockElems ? w.cols - k : kFp8BlockElems, scale,
               out + k);
        }
        return;
    }
  }

  static void bf16(const uint16_t* from, int64_t n, float* out) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) S::store(out + i, S::load_bf16(from + i));
    for (; i < n; ++i) out[i] = bf16_to_float(from[i]);
  }

  static void mxfp4(const uint8_t* codes, float scale, float* out) {
    Vec v[32 / kLanes];
    S::decode_block(codes, scale, v);
    for (int j = 0; j < 32 / kLanes; ++j) S::store(out + j * kLanes, v[j]);
  }

  static void f16(const uint16_t* from, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = f16_to_float(from[i]);
  }

  // Two blocks at a time in block order; the odd last one in its own.
  static void nvfp4(const uint8_t* codes, const uint8_t* scales, int64_t cols, float row_scale,
                    float* out) {
    constexpr int kVecs = 16 / kLanes;  // of the even elements of two blocks, and of the odd ones
    int64_t k = 0;
    for (; k + 32 <= cols; k += 32, codes += 16, scales += 2) {
      float steps[16];  // of the even elements, and alike of the odd ones
      for (int b = 0; b < 2; ++b)
        for (int i = 0; i < 8; ++i) steps[8 * b + i] = kE4m3[scales[b]] * row_scale;
      Vec v[2 * kVecs];
      S::decode_block(codes, 1, v);
      for (int j = 0; j < kVecs; ++j) {
        const Vec step = S::load(steps + j * kLanes);
        S::store(out + k + j * kLanes, S::mul(v[j], step));
        S::store(out + k + 16 + j * kLanes, S::mul(v[kVecs + j], step));
      }
    }
    if (k == cols) return;
    const float step = kE4m3[*scales] * row_scale;
    for (int i = 0; i < 8; ++i) {
      out[k + 2 * i] = kE2m1[codes[i] & 15] * step;
      out[k + 2 * i + 1] = kE2m1[codes[i] >> 4] * step;
    }
  }

  // In block order, as vectors of the compiler's: the numbers are small and whole.
  template <int kGroup>
  static void int4(const uint8_t* codes, const uint8_t* groups, int64_t cols, float* out) {
    for (int64_t k = 0; k < cols; k += 32, codes += 16, out += 32) {
      const Int4Group group = int4_group(groups, k / kGroup);
      const float scale = group.value();
      const int zero = group.zero;
      for (int i = 0; i < 16; ++i) {
        out[i] = static_cast<float>((codes[i] & 15) - zero) * scale;
        out[16 + i] = static_cast<float>((codes[i] >> 4) - zero) * scale;
      }
    }
  }

  // n codes under one scale. load_e4m3() is in units of a power of two: the product is exact.
  static void e4m3(const uint8_t* codes, int64_t n, float scale, float* out) {
    const Vec unit = S::set1(scale * S::kE4m3Unit);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) S::store(out + i, S::mul(S::load_e4m3(codes + i), unit));
    for (; i < n; ++i) out[i] = kE4m3[codes[i]] * scale;
  }
};

}  // namespace nibble::ops
