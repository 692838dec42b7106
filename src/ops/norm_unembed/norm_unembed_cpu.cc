#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/product.h"
#include "ops/norm_unembed/norm_unembed.h"

namespace nibble::ops {
namespace {

template <typename Product>
struct NormUnembedScratch {
  NormUnembedScratch(Scratch s, const typename Product::Kernels* kernels, const NormUnembedDesc& d,
                     int64_t rows, int threads)
      : sums(s.take<float>(threads * d.hidden)),
        product(kernels, s, {d.format, d.hidden, rows, rows, 1, threads}),
        used_bytes(s.used_bytes()) {}
  float* sums;  // [threads][H] x + d of one row
  Product product;
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const NormUnembedDesc& desc, int64_t rows, int threads) {
  return most_scratch_bytes<NormUnembedScratch>(desc, rows, threads);
}

template <typename Product, cpu::Isa kIsa>
void CpuNormUnembed<Product, kIsa>::run(Ctx& cx, const Tensor& logits, const Tensor& h,
                                        const Tensor& x, const Tensor& d, const Norm& norm,
                                        const Weight& unembed, const Step& s) {
  const FloatKernels& floats = float_kernels(float_isa(kIsa));
  const int64_t hidden = unembed.cols;
  const NormUnembedDesc desc{hidden, unembed.rows, unembed.format};
  NormUnembedScratch<Product> scratch(Scratch(cx.scratch), &Product::kernels(kIsa), desc, s.num_out,
                                      cx.pool->size());
  cx.pool->parallel_for(s.num_out, 1, [&](int64_t r, int64_t end, int worker) {
    float* sum = scratch.sums + worker * hidden;
    for (; r < end; ++r) {
      const int64_t at = s.out_rows[r] * hidden;
      floats.add_norm(sum, h.as<float>() + r * hidden, x.as<float>() + at, d.as<float>() + at, norm,
                      hidden, cx.activations == DType::kBF16);
    }
  });
  linear(cx, scratch.product, logits.as<float>(), h.as<float>(), s.num_out, unembed);
}

template struct CpuNormUnembed<FloatProduct, cpu::Isa::kAvx512>;
template struct CpuNormUnembed<FloatProduct, cpu::Isa::kAvx2>;
template struct CpuNormUnembed<FloatProduct, cpu::Isa::kNeon>;
template struct CpuNormUnembed<FloatProduct, cpu::Isa::kScalar>;
template struct CpuNormUnembed<Bf16Product, cpu::Isa::kAmx>;
template struct CpuNormUnembed<Bf16Product, cpu::Isa::kAvx512Bf16>;
template struct CpuNormUnembed<Bf16RowProduct, cpu::Isa::kAmx>;
template struct CpuNormUnembed<Bf16RowProduct, cpu::Isa::kAvx512Bf16>;
template struct CpuNormUnembed<FloatPanelProduct, cpu::Isa::kAvx512>;
template struct CpuNormUnembed<FloatPanelProduct, cpu::Isa::kAvx2>;
template struct CpuNormUnembed<FloatPanelProduct, cpu::Isa::kNeon>;
template struct CpuNormUnembed<Int8Product, cpu::Isa::kAvx512Vnni>;
template struct CpuNormUnembed<Int8Product, cpu::Isa::kAvxVnni>;
template struct CpuNormUnembed<Int8Product, cpu::Isa::kAvx2>;
template struct CpuNormUnembed<Int8Product, cpu::Isa::kNeonDot>;
template struct CpuNormUnembed<Int8RowProduct, cpu::Isa::kAmx>;
template struct CpuNormUnembed<Int8RowProduct, cpu::Isa::kAvx512Vnni>;

}  // namespace nibble::ops
