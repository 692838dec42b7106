// norm_qkv for many tokens by mma.sync: the norm, then the GEMM, which turns and stores.
#include "ops/gpu_matmul/gemm_mma.h"
#include "ops/norm/add_norm.h"
#include "ops/norm_qkv/norm_qkv.h"

namespace nibble::ops::gpu {

void norm_qkv_mma(Ctx& cx, const NormQkvOut& out, const KvLayer& kv, const Tensor& x,
                  const Tensor& d, const QkvNorms& norms, const Weight& qkv, const Tensor& cos_sin,
                  const Step& s) {
  if (s.num_tokens == 0) return;
  add_norm(cx, {.y = out.y.as<float>(),
                .h = out.h.as<uint16_t>(),
                .x = x.as<float>(),
                .d = d.as<float>(),
                .norm = norms.input,
                .tokens = s.num_tokens,
                .hidden = x.dim(1)});
  mma::gemm(cx, qkv, GemmOut::kQkv,
            {.x = out.h.data, .num_slots = s.num_tokens, .qkv = qkv_store(out.q, kv, cos_sin, s)});
}

}  // namespace nibble::ops::gpu
