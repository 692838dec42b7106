#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/product.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops {
namespace {

template <typename Product>
struct OutProjScratch {
  OutProjScratch(Scratch s, const typename Product::Kernels* kernels, const OutProjDesc& d,
                 int64_t tokens, int threads)
      : product(kernels, s, {d.format, d.width, tokens, tokens, 1, threads}),
        used_bytes(s.used_bytes()) {}
  Product product;
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const OutProjDesc& desc, int64_t tokens, int threads) {
  return most_scratch_bytes<OutProjScratch>(desc, tokens, threads);
}

template <typename Product, cpu::Isa kIsa>
void CpuOutProj<Product, kIsa>::run(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                                    const Step& s) {
  const OutProjDesc desc{out.rows, out.cols, out.format};
  OutProjScratch<Product> scratch(Scratch(cx.scratch), &Product::kernels(kIsa), desc, s.num_tokens,
                                  cx.pool->size());
  linear(cx, scratch.product, d.as<float>(), att.as<float>(), s.num_tokens, out);
}

template struct CpuOutProj<FloatProduct, cpu::Isa::kAvx512>;
template struct CpuOutProj<FloatProduct, cpu::Isa::kAvx2>;
template struct CpuOutProj<FloatProduct, cpu::Isa::kNeon>;
template struct CpuOutProj<FloatProduct, cpu::Isa::kScalar>;
template struct CpuOutProj<Bf16Product, cpu::Isa::kAmx>;
template struct CpuOutProj<Bf16Product, cpu::Isa::kAvx512Bf16>;
template struct CpuOutProj<Bf16RowProduct, cpu::Isa::kAmx>;
template struct CpuOutProj<Bf16RowProduct, cpu::Isa::kAvx512Bf16>;
template struct CpuOutProj<FloatPanelProduct, cpu::Isa::kAvx512>;
template struct CpuOutProj<FloatPanelProduct, cpu::Isa::kAvx2>;
template struct CpuOutProj<FloatPanelProduct, cpu::Isa::kNeon>;
template struct CpuOutProj<Int8Product, cpu::Isa::kAvx512Vnni>;
template struct CpuOutProj<Int8Product, cpu::Isa::kAvxVnni>;
template struct CpuOutProj<Int8Product, cpu::Isa::kAvx2>;
template struct CpuOutProj<Int8Product, cpu::Isa::kNeonDot>;
template struct CpuOutProj<Int8RowProduct, cpu::Isa::kAmx>;
template struct CpuOutProj<Int8RowProduct, cpu::Isa::kAvx512Vnni>;

}  // namespace nibble::ops
