// Turns q and k of a token by its position and stores q, k and v: the epilogue of every CUDA row of
// norm_qkv, whatever computed the products.
#pragma once

#include <cuda_runtime.h>

#include "cuda/bf16.cuh"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_qkv/qkv_store.h"
#include "ops/scratch.h"

namespace nibble::ops::gpu {

// Memory for the products [T, rows] f32 of a row that ends in store_qkv(): where attention takes
// them from there, that of LeftHeads.
float* products_of(Ctx& cx, Scratch& scratch, const Step& s, int64_t rows);

// For products [T, (Q + 2 G) * D] f32 in memory; heads are normed where `norms` says so. Those in
// LeftHeads stay there.
void store_qkv(Ctx& cx, const QkvStore& s, const QkvNorms& norms, const float* products);

// Heads that the GEMMs' epilogues turn and store: of 64 dims, all turned, without norms or gates.
inline bool has_plain_heads(const QkvStore& s, const QkvNorms& norms) {
  return s.dim == 64 && s.rotary == 64 && s.gate == nullptr && norms.q.weight == nullptr &&
         norms.k.weight == nullptr;
}

// The span of token t: spans cover all tokens in order.
__device__ __forceinline__ Span span_of_token(const Span* spans, int32_t num_spans,
                                              int32_t num_tokens, int32_t t) {
  if (num_spans == num_tokens) return spans[t];
  int32_t low = 0, high = num_spans - 1;
  while (low < high) {
    const int32_t mid = (low + high + 1) / 2;
    spans[mid].q_start <= t ? low = mid : high = mid - 1;
  }
  return spans[low];
}

// Index of element 0 of token t's key (and value) of KV head 0. Reads the step and the page table
// only: may come before griddep_wait().
__device__ __forceinline__ int64_t kv_row(const QkvStore& s, int32_t t) {
  const int32_t pos = s.positions[t];
  const int32_t slot = span_of_token(s.spans, s.num_spans, s.num_tokens, t).slot;
  const int64_t page = s.page_table[int64_t{slot} * s.max_pages + pos / s.page_size];
  return (page * s.kv_heads * s.page_size + pos % s.page_size) * s.dim;
}

// Dims of `head` of token t as they are. `row` is kv_row(s, t).
__device__ __forceinline__ void put_pair(const QkvStore& s, int64_t row, int32_t t, int32_t head,
                                         int2 dims, float a, float b) {
  if (head < s.q_heads) {
    uint16_t* to = s.q + (int64_t{t} * s.q_heads + head) * s.dim;
    to[dims.x] = cuda::bf16_bits(a);
    to[dims.y] = cuda::bf16_bits(b);
    return;
  }
  const int32_t g = head - s.q_heads;
  void* pages = g < s.kv_heads ? s.k : s.v;
  const int64_t at = row + int64_t{g < s.kv_heads ? g : g - s.kv_heads} * s.page_size * s.dim;
  if (s.fp8) {
    const float by = g < s.kv_heads ? s.by_k : s.by_v;
    a *= by, b *= by;
    uint16_t both;  // a in the low byte
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
    static_cast<uint8_t*>(pages)[at + dims.x] = static_cast<uint8_t>(both);
    static_cast<uint8_t*>(pages)[at + dims.y] = static_cast<uint8_t>(both >> 8);
  } else {
    static_cast<uint16_t*>(pages)[at + dims.x] = cuda::bf16_bits(a);
    static_cast<uint16_t*>(pages)[at + dims.y] = cuda::bf16_bits(b);
  }
}

// Stores dims i and i + D / 2 of `head` of token t, whose products (with bias) are a and b. `row`
// is kv_row(s, t); cos_sin is read here: after griddep_wait().
__device__ __forceinline__ void store_pair(const QkvStore& s, int64_t row, int32_t t, int32_t head,
                                           int32_t i, float a, float b) {
  const int32_t half = s.dim / 2;
  if (head < s.q_heads + s.kv_heads) {
    const float c = s.cos_sin[int64_t{t} * s.dim + i], n = s.cos_sin[int64_t{t} * s.dim + half + i];
    const float turned = a * c - b * n;
    b = b * c + a * n;
    a = turned;
  }
  put_pair(s, row, t, head, {i, i + half}, a, b);
}

// Of dims i and i + 1 of a head, i even; {}: it is not turned. After griddep_wait().
struct PairsTurn {
  float2 cos, sin;
};
__device__ __forceinline__ PairsTurn turn_of_pairs(const QkvStore& s, int32_t t, int32_t head,
                                                   int32_t i) {
  if (head >= s.q_heads + s.kv_heads) return {};
  const float* const from = s.cos_sin + int64_t{t} * s.dim + i;
  return {*reinterpret_cast<const float2*>(from),
          *reinterpret_cast<const float2*>(from + s.dim / 2)};
}

// store_pair() for i and i + 1.
__device__ __forceinline__ void store_pairs(const QkvStore& s, int64_t row, int32_t t, int32_t head,
                                            int32_t i, float2 a, float2 b, const PairsTurn& turn) {
  const int32_t half = s.dim / 2;
  if (head < s.q_heads + s.kv_heads) {
    const float2 by = turn.cos, n = turn.sin;
    const float2 turned = {a.x * by.x - b.x * n.x, a.y * by.y - b.y * n.y};
    b = {b.x * by.x + a.x * n.x, b.y * by.y + a.y * n.y};
    a = turned;
  }
  if (head < s.q_heads) {
    uint16_t* to = s.q + (int64_t{t} * s.q_heads + head) * s.dim + i;
    *reinterpret_cast<uint32_t*>(to) = cuda::pack_bf16(a.x, a.y);
    *reinterpret_cast<uint32_t*>(to + half) = cuda::pack_bf16(b.x, b.y);
    return;
  }
  const int32_t g = head - s.q_heads;
  void* pages = g < s.kv_heads ? s.k : s.v;
  const int64_t at = row + int64_t{g < s.kv_heads ? g : g - s.kv_heads} * s.page_size * s.dim + i;
  if (s.fp8) {
    const float by = g < s.kv_heads ? s.by_k : s.by_v;
    a = {a.x * by, a.y * by}, b = {b.x * by, b.y * by};
    uint16_t near, far;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(near) : "f"(a.y), "f"(a.x));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(far) : "f"(b.y), "f"(b.x));
    auto* const to = static_cast<uint8_t*>(pages) + at;
    *reinterpret_cast<uint16_t*>(to) = near;
    *reinterpret_cast<uint16_t*>(to + half) = far;
  } else {
    auto* const to = static_cast<uint16_t*>(pages) + at;
    *reinterpret_cast<uint32_t*>(to) = cuda::pack_bf16(a.x, a.y);
    *reinterpret_cast<uint32_t*>(to + half) = cuda::pack_bf16(b.x, b.y);
  }
}

}  // namespace nibble::ops::gpu
