// What every CUDA kernel of attention is given, and the constants that they share.
#pragma once

#include <bit>
#include <cstdint>

#include "ops/attention/attention.h"

namespace nibble::ops::gpu::attention_kernel {

inline constexpr int kPageKeys = 16;  // keys, from a multiple on, that surely lie in one page
inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr unsigned kAll = 0xffffffff;

struct Arguments {
  uint16_t* att = nullptr;
  const uint16_t* q = nullptr;
  const void* k = nullptr;  // bf16 or E4M3
  const void* v = nullptr;
  const int32_t* page_table = nullptr;
  const Span* spans = nullptr;
  const uint16_t* sinks = nullptr;
  int32_t num_spans = 0, max_pages = 0, page_shift = 0, kv_heads = 0, group = 0, window = 0;
  float scale = 0;    // of scores, in powers of two
  float v_scale = 1;  // of values
};

inline Arguments arguments(const Tensor& att, const Tensor& q, const KvLayer& kv,
                           const AttentionParams& params, const Step& s) {
  const auto kv_heads = static_cast<int32_t>(kv.k.dim(1));
  CHECK(kv.k.dtype == DType::kBF16 || kv.k.dtype == DType::kF8E4M3);
  CHECK(kv.page_size % kPageKeys == 0 && std::has_single_bit(static_cast<uint32_t>(kv.page_size)));
  return {.att = att.as<uint16_t>(),
          .q = q.as<uint16_t>(),
          .k = kv.k.data,
          .v = kv.v.data,
          .page_table = kv.page_table,
          .spans = s.spans,
          .sinks = params.sinks,
          .num_spans = s.num_spans,
          .max_pages = kv.max_pages,
          .page_shift = std::countr_zero(static_cast<uint32_t>(kv.page_size)),
          .kv_heads = kv_heads,
          .group = static_cast<int32_t>(q.dim(1) / kv.k.dim(3) / kv_heads),
          .window = params.window,
          .scale = params.scale * kv.k_scale * kLog2e,
          .v_scale = kv.v_scale};
}

// Calls run<kDim, kFp8>() for the dims and the format of the pages.
template <typename Run>
void with_shape(const KvLayer& kv, const Run& run) {
  const auto with_dim = [&]<int kDim>() {
    kv.k.dtype == DType::kF8E4M3 ? run.template operator()<kDim, true>()
                                 : run.template operator()<kDim, false>();
  };
  switch (kv.k.dim(3)) {
    case 64:
      return with_dim.template operator()<64>();
    case 128:
      return with_dim.template operator()<128>();
    default:
      CHECK(kv.k.dim(3) == 256);
      return with_dim.template operator()<256>();
  }
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace nibble::ops::gpu::attention_kernel
