// norm_qkv by SM12x's block-scaled mma: the norm, E4M3 of it, then the GEMM, which turns and
// stores.
#include "ops/gpu_matmul/gemm_fp8_sm12x.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"

namespace nibble::ops::gpu {

void norm_qkv_block_scaled(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                           const Tensor& d, const QkvNorms& norms, const Weight& qkv,
                           const Tensor& cos_sin, const Step& s) {
  if (s.num_tokens == 0) return;
  add_norm(cx, {.y = out.y.as<float>(),
                .h = out.h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norms.input,
                .tokens = s.num_tokens,
                .hidden = x.dim(1)});
  Scratch scratch(cx.scratch);
  const E4m3Rows h =
      sm12x::quantize_rows(cx, scratch, out.h.as<uint16_t>(), s.num_tokens, qkv.cols);
  sm12x::gemm_fp8(cx, qkv, GemmOut::kQkv,
                  {.x = h.codes,
                   .num_slots = s.num_tokens,
                   .x_scale = h.scales,
                   .qkv = qkv_store(out.q, kv, cos_sin, s)});
}

}  // namespace nibble::ops::gpu
