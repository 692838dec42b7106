// What the CPU rows of norm_qkv do behind the product.
#pragma once

#include "ops/norm_qkv/norm_qkv.h"

namespace nibble::ops {

// Token t's q, k and v from y [(Q + 2G) * D], which it overwrites, to their places: heads of q and
// k normed where `norms` says so, and turned by row t of cos_sin. `gates`: NormQkvOut::gate, whose
// rows lie behind those of each head of q.
void place_qkv(Ctx& cx, const Tensor& q, const KvLayer& kv, const QkvNorms& norms,
               const Tensor& cos_sin, float* y, int64_t t, int32_t slot, int32_t pos,
               const Tensor& gates = {});

}  // namespace nibble::ops
