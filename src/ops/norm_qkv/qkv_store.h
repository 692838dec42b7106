// Where the CUDA rows of norm_qkv store q, k and v: what store_qkv.cuh and the wgmma GEMMs take.
#pragma once

#include "ops/ctx.h"
#include "ops/step.h"

namespace nibble::ops::gpu {

// D is the head dim, half of it a pair's distance; heads are numbered q, k, v: [0, Q + 2 G).
struct QkvStore {
  uint16_t* q;  // [T, Q * D] bf16
  void* k;      // [pages, G, P, D] bf16 or E4M3
  void* v;
  const int32_t* page_table;  // [slots, max_pages]
  const float* cos_sin;       // [T, R]
  const int32_t* positions;   // [T]
  const Span* spans;          // [S]
  int32_t num_tokens, num_spans, max_pages, page_size, q_heads, kv_heads, dim;
  int32_t rotary;    // R: dims of a head that are turned
  float* gate;       // [T, Q * D], or none: query heads have no gates
  bool fp8;          // pages hold E4M3
  float by_k, by_v;  // times which keys and values are stored
};

// `gate`: see NormQkvOut.
QkvStore qkv_store(const Tensor& q, const KvLayer& kv, const Tensor& cos_sin, const Step& s,
                   const Tensor& gate = {});

}  // namespace nibble::ops::gpu
