// Addresses and elements of the pages of a layer. Keys and values are stored as f32, bf16 or FP8
// E4M3: there divided by the layer's scales, which are 1 in most checkpoints. Rounded keys and
// values of trained models stay far below 448, E4M3's largest; what exceeds it is stored as 448.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "formats/bf16.h"
#include "formats/fp8.h"
#include "ops/step.h"

namespace nibble::ops {

// Index of element 0 of the key (and value) of position `pos`, KV head g, of the sequence in
// `slot`.
inline int64_t kv_index(const KvLayer& kv, int32_t slot, int32_t pos, int64_t g) {
  const int32_t page =
      kv.page_table[static_cast<int64_t>(slot) * kv.max_pages + pos / kv.page_size];
  CHECK(page != KvLayer::kNoPage);
  const int64_t heads = kv.k.shape[1], dim = kv.k.shape[3];
  return ((page * heads + g) * kv.page_size + pos % kv.page_size) * dim;
}

inline float kv_get(const Tensor& pages, int64_t at) {
  if (pages.dtype == DType::kBF16) return bf16_to_float(pages.as<uint16_t>()[at]);
  if (pages.dtype == DType::kF8E4M3) return kE4m3[pages.as<uint8_t>()[at]];
  return pages.as<float>()[at];
}

// `value` is a key's or value's element over its scale.
inline void kv_put(const Tensor& pages, int64_t at, float value) {
  if (pages.dtype == DType::kBF16)
    pages.as<uint16_t>()[at] = bf16_from_float(value);
  else if (pages.dtype == DType::kF8E4M3)
    pages.as<uint8_t>()[at] = e4m3_from_float(value);
  else
    pages.as<float>()[at] = value;
}

// `n` elements of a key or value, each over `scale`.
inline void kv_put_row(const Tensor& pages, int64_t at, const float* values, int64_t n,
                       float scale) {
  const auto put = [&](auto* to, auto&& stored) {
    if (scale == 1)  // a division costs more than all else
      for (int64_t i = 0; i < n; ++i) to[i] = stored(values[i]);
    else
      for (int64_t i = 0; i < n; ++i) to[i] = stored(values[i] / scale);
  };
  if (pages.dtype == DType::kBF16)
    put(pages.as<uint16_t>() + at, [](float x) { return bf16_from_float(x); });
  else if (pages.dtype == DType::kF8E4M3)
    put(pages.as<uint8_t>() + at, [](float x) { return e4m3_from_float(x); });
  else
    put(pages.as<float>() + at, [](float x) { return x; });
}

}  // namespace nibble::ops
