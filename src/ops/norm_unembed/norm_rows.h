// The norm before the products of norm_unembed's CUDA rows: of the rows wanted alone.
#pragma once

#include "ops/norm/add_norm.h"
#include "ops/norm_unembed/norm_unembed.h"

namespace nibble::ops::gpu {

inline AddNorm norm_rows(const Tensor& h, const Tensor& x, const Tensor& d, const Norm& norm,
                         const Step& s) {
  return {.y = nullptr,
          .h = h.as<uint16_t>(),
          .x = x.as<float>(),
          .d = d.as<float>(),
          .norm = norm,
          .tokens = s.num_out,
          .hidden = x.dim(1),
          .rows = s.out_rows};
}

}  // namespace nibble::ops::gpu
