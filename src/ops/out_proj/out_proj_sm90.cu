// out_proj for many tokens: the dense wgmma GEMM, and BF16 rows that stream (gemm_rows_sm90.cuh).
#include "ops/all_reduce/all_reduce.h"
#include "ops/all_reduce/gpu_ranks.h"
#include "ops/gpu_matmul/gemm_dense_sm90.h"
#include "ops/gpu_matmul/gemm_fp8_sm90.h"
#include "ops/gpu_matmul/rows_products.h"
#include "ops/gpu_matmul/unit_f16_products.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops::gpu {

void out_proj_f16(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  Scratch scratch(cx.scratch);
  multiply_f16(cx, scratch, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

void out_proj_gemm(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  gemm(cx, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

void out_proj_gemm_slices(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                          const Step& s) {
  if (sends_sum(cx, s.num_tokens))
    return gemm_over_ranks(cx, ranks_of(cx).peers(), out, att.as<uint16_t>(), s.num_tokens,
                           static_cast<uint16_t*>(d.data));
  Scratch scratch(cx.scratch);
  gemm_slices(cx, scratch, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

void out_proj_stream(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                     const Step& s) {
  Scratch scratch(cx.scratch);
  multiply_rows_sm90(cx, scratch, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

void out_proj_gemm_fp8(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                       const Step& s) {
  Scratch scratch(cx.scratch);
  gemm_fp8(cx, scratch, out, att.as<uint16_t>(), s.num_tokens, d.as<float>());
}

}  // namespace nibble::ops::gpu
