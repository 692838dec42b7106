// add_norm: y = x + d; h = norm(y), for the CUDA rows that keep it apart from the matrix product
// behind it: where many tokens would have every block of that product do it again.
#pragma once

#include <cstdint>

#include "ops/ctx.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/weight.h"

namespace nibble::ops::gpu {

// y [T, H] f32, h [T, H] bf16, out; x, d [T, H] f32; H % 8 == 0, at most 8,192. y is not x.
// `rows` [T], if given: row t of h is the norm of row rows[t] of x + d, and y is left alone.
// `e4m3`, if given: h again, for products of many rows; H % 32 == 0.
struct AddNorm {
  float* y;
  uint16_t* h;
  const float* x;
  const float* d;
  Norm norm;
  int64_t tokens;
  int64_t hidden;
  const int32_t* rows = nullptr;
  E4m3Rows e4m3 = {};
};
// What an op does that begins so: its y and h, out, of x, d [T, H].
template <typename Out>
AddNorm norm_for(const Out& out, const Tensor& x, const Tensor& d, const Norm& norm) {
  return {.y = out.y.template as<float>(),
          .h = out.h.template as<uint16_t>(),
          .x = x.as<float>(),
          .d = d.as<float>(),
          .norm = norm,
          .tokens = x.dim(0),
          .hidden = x.dim(1)};
}
// Where d is what all_reduce has left (cx.left_sum), the sum over the ranks is made here.
void add_norm(Ctx& cx, const AddNorm& a);
// And logits [T] = h . gate [H] bf16, where there is one.
struct GateLogits {
  const uint16_t* gate = nullptr;
  float* logits = nullptr;
  int64_t stride = 1;  // from one token's to the next
};
void add_norm(Ctx& cx, const AddNorm& a, const GateLogits& gate);
// The same for any H, without `e4m3`; a row's bits do not depend on the others.
void add_norm_any(Ctx& cx, const AddNorm& a);

}  // namespace nibble::ops::gpu
