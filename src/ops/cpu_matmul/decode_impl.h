// Rows of a weight in kRows as float32, over a vector type S; see float_kernels_impl.h for how it
// is compiled. Every format of formats/format.h is here.
#pragma once

#include <cstring>

#include "cpu/simd.h"
#include "formats/bf16.h"
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
    const int64_t n = w.rows * w.cols;
    switch (w.format) {
      case Format::kF32:
        std::memcpy(out, w.codes, n * sizeof(float));
        return;
      case Format::kBF16:
        return bf16(reinterpret_cast<const uint16_t*>(w.codes), n, out);
      case Format::kMxfp4:
        for (int64_t b = 0; b < n / kMxfp4BlockElems; ++b)
          mxfp4(w.codes + 16 * b, e8m0(w.scales[b]), out + kMxfp4BlockElems * b);
        return;
      case Format::kMxfp8:
        for (int64_t b = 0; b < n / kMxfp8BlockElems; ++b)
          e4m3(w.codes + 32 * b, kMxfp8BlockElems, e8m0(w.scales[b]), out + kMxfp8BlockElems * b);
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

  // n codes under one scale, n a multiple of kLanes.
  static void e4m3(const uint8_t* codes, int64_t n, float scale, float* out) {
    const Vec unit = S::set1(scale * S::kE4m3Unit);
    for (int64_t i = 0; i < n; i += kLanes)
      S::store(out + i, S::mul(S::load_e4m3(codes + i), unit));
  }
};

}  // namespace nibble::ops
