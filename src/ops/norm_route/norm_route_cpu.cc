#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/product.h"
#include "ops/norm_route/norm_route.h"

namespace nibble::ops {
namespace {

struct NormRouteScratch {
  NormRouteScratch(Scratch s, const FloatKernels* kernels, const NormRouteDesc& d, int64_t tokens,
                   int threads)
      : logits(s.take<float>(tokens * d.experts)),
        product(kernels, s, {d.format, d.hidden, tokens, tokens, 1, threads}),
        used_bytes(s.used_bytes()) {}
  float* logits;  // [T, E]
  FloatProduct product;
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const NormRouteDesc& desc, int64_t tokens, int threads) {
  return NormRouteScratch(Scratch(), nullptr, desc, tokens, threads).used_bytes;
}

template <cpu::Isa kIsa>
void BlockedNormRoute<kIsa>::run(Ctx& cx, const Tensor& y, const Tensor& h, Routing& routing,
                                 const Tensor& x, const Tensor& d, const Norm& norm,
                                 const Weight& router) {
  const FloatKernels& kernels = float_kernels(kIsa);
  const int64_t hidden = router.cols, experts = router.rows, tokens = routing.num_tokens;
  const NormRouteDesc desc{hidden, experts, routing.top_k, router.format};
  NormRouteScratch scratch(Scratch(cx.scratch), &kernels, desc, tokens, cx.pool->size());
  cx.pool->parallel_for(tokens, 1, [&](int64_t t, int64_t end, int) {
    for (; t < end; ++t)
      kernels.add_norm(y.as<float>() + t * hidden, h.as<float>() + t * hidden,
                       x.as<float>() + t * hidden, d.as<float>() + t * hidden, norm, hidden,
                       cx.activations == DType::kBF16);
  });
  linear(cx, scratch.product, scratch.logits, h.as<float>(), tokens, router);
  cx.pool->parallel_for(tokens, 1, [&](int64_t t, int64_t end, int) {
    for (; t < end; ++t) {
      choose_experts(scratch.logits + t * experts, routing, t);
      add_shared(routing, t, h.as<float>() + t * hidden, hidden);
    }
  });
  sort_by_expert(routing);
}

template struct BlockedNormRoute<cpu::Isa::kAvx512>;
template struct BlockedNormRoute<cpu::Isa::kAvx2>;
template struct BlockedNormRoute<cpu::Isa::kNeon>;
template struct BlockedNormRoute<cpu::Isa::kScalar>;

}  // namespace nibble::ops
