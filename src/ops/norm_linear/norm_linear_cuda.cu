// norm_linear for few tokens with BF16 weights: add_norm, then rows by mma
// (ops/gpu_matmul/rows_gemv.cuh); of one token in one launch.
// p [T, N] f32, h [T, H] bf16, y [T, H] f32, out; x, d [T, H] f32; in [N, H] in kRows. Needs
// N % 16 == 0, H % 64 == 0, H <= 4608. Bytes: the weights; 50 MB for the delta-net layers of
// Qwen3-Next-80B: 11 us of an H200's 4.55 TB/s, 216 us of a GB10's 233 GB/s.
#include "ops/gpu_matmul/rows_products.h"
#include "ops/norm_linear/norm_linear.h"

namespace nibble::ops::gpu {

void norm_linear_rows(Ctx& cx, const NormLinearOut& out, const Tensor& x, const Tensor& d,
                      const Norm& norm, const Weight& in) {
  norm_multiply_rows(cx, norm_for(out, x, d, norm), in, out.p.as<float>());
}

}  // namespace nibble::ops::gpu
