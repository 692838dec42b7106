#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/product.h"
#include "ops/norm_linear/norm_linear.h"

namespace nibble::ops {
namespace {

template <typename Product>
struct NormLinearScratch {
  NormLinearScratch(Scratch s, const typename Product::Kernels* kernels, const NormLinearDesc& d,
                    int64_t tokens, int threads)
      : product(kernels, s, {d.format, d.hidden, tokens, tokens, 1, threads}),
        used_bytes(s.used_bytes()) {}
  Product product;
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const NormLinearDesc& desc, int64_t tokens, int threads) {
  return most_scratch_bytes<NormLinearScratch>(desc, tokens, threads);
}

template <typename Product, cpu::Isa kIsa>
void CpuNormLinear<Product, kIsa>::run(Ctx& cx, const NormLinearOut& out, const Tensor& x,
                                       const Tensor& d, const Norm& norm, const Weight& in) {
  const FloatKernels& floats = float_kernels(float_isa(kIsa));
  const int64_t hidden = in.cols, tokens = x.dim(0);
  NormLinearScratch<Product> scratch(Scratch(cx.scratch), &Product::kernels(kIsa),
                                     {hidden, in.rows, in.format}, tokens, cx.pool->size());
  cx.pool->parallel_for(tokens, 1, [&](int64_t t, int64_t end, int) {
    for (; t < end; ++t)
      floats.add_norm(out.y.as<float>() + t * hidden, out.h.as<float>() + t * hidden,
                      x.as<float>() + t * hidden, d.as<float>() + t * hidden, norm, hidden,
                      cx.activations == DType::kBF16);
  });
  linear(cx, scratch.product, out.p.as<float>(), out.h.as<float>(), tokens, in);
}

template struct CpuNormLinear<FloatProduct, cpu::Isa::kAvx512>;
template struct CpuNormLinear<FloatProduct, cpu::Isa::kAvx2>;
template struct CpuNormLinear<FloatProduct, cpu::Isa::kNeon>;
template struct CpuNormLinear<FloatProduct, cpu::Isa::kScalar>;
template struct CpuNormLinear<Bf16Product, cpu::Isa::kAmx>;
template struct CpuNormLinear<Bf16Product, cpu::Isa::kAvx512Bf16>;
template struct CpuNormLinear<Bf16RowProduct, cpu::Isa::kAmx>;
template struct CpuNormLinear<Bf16RowProduct, cpu::Isa::kAvx512Bf16>;
template struct CpuNormLinear<FloatPanelProduct, cpu::Isa::kAvx512>;
template struct CpuNormLinear<FloatPanelProduct, cpu::Isa::kAvx2>;
template struct CpuNormLinear<FloatPanelProduct, cpu::Isa::kNeon>;
template struct CpuNormLinear<Int8Product, cpu::Isa::kAvx512Vnni>;
template struct CpuNormLinear<Int8Product, cpu::Isa::kAvxVnni>;
template struct CpuNormLinear<Int8Product, cpu::Isa::kAvx2>;
template struct CpuNormLinear<Int8Product, cpu::Isa::kNeonDot>;
template struct CpuNormLinear<Int8RowProduct, cpu::Isa::kAmx>;
template struct CpuNormLinear<Int8RowProduct, cpu::Isa::kAvx512Vnni>;

}  // namespace nibble::ops
