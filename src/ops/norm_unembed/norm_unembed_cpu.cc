#include "cpu/thread_pool.h"
#include "ops/linear/product.h"
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

template <typename Product, cpu::Isa kIsa>
void run_with(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x, const Tensor& d,
              const Norm& norm, const Weight& unembed, const Step& s) {
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

}  // namespace

int64_t scratch_bytes(const NormUnembedDesc& desc, int64_t rows, int threads) {
  return most_scratch_bytes<NormUnembedScratch>(desc, rows, threads);
}

template <cpu::Isa kIsa>
void BlockedNormUnembed<kIsa>::run(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                                   const Tensor& d, const Norm& norm, const Weight& unembed,
                                   const Step& s) {
  run_with<FloatProduct, kIsa>(cx, logits, h, x, d, norm, unembed, s);
}

template <cpu::Isa kIsa>
void Fp8NormUnembed<kIsa>::run(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                               const Tensor& d, const Norm& norm, const Weight& unembed,
                               const Step& s) {
  run_with<Fp8Product, kIsa>(cx, logits, h, x, d, norm, unembed, s);
}

template <cpu::Isa kIsa>
void Bf16NormUnembed<kIsa>::run(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                                const Tensor& d, const Norm& norm, const Weight& unembed,
                                const Step& s) {
  run_with<Bf16Product, kIsa>(cx, logits, h, x, d, norm, unembed, s);
}

template <cpu::Isa kIsa>
void Bf16RowNormUnembed<kIsa>::run(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                                   const Tensor& d, const Norm& norm, const Weight& unembed,
                                   const Step& s) {
  run_with<Bf16RowProduct, kIsa>(cx, logits, h, x, d, norm, unembed, s);
}

template <cpu::Isa kIsa>
void Int8NormUnembed<kIsa>::run(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                                const Tensor& d, const Norm& norm, const Weight& unembed,
                                const Step& s) {
  run_with<Int8Product, kIsa>(cx, logits, h, x, d, norm, unembed, s);
}

template <cpu::Isa kIsa>
void Int8RowNormUnembed<kIsa>::run(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                                   const Tensor& d, const Norm& norm, const Weight& unembed,
                                   const Step& s) {
  run_with<Int8RowProduct, kIsa>(cx, logits, h, x, d, norm, unembed, s);
}

template struct BlockedNormUnembed<cpu::Isa::kAvx512>;
template struct BlockedNormUnembed<cpu::Isa::kAvx2>;
template struct BlockedNormUnembed<cpu::Isa::kNeon>;
template struct Bf16NormUnembed<cpu::Isa::kAmx>;
template struct Bf16NormUnembed<cpu::Isa::kAvx512Bf16>;
template struct Bf16RowNormUnembed<cpu::Isa::kAmx>;
template struct Fp8NormUnembed<cpu::Isa::kAvx512>;
template struct Fp8NormUnembed<cpu::Isa::kAvx2>;
template struct Fp8NormUnembed<cpu::Isa::kNeon>;
template struct Int8NormUnembed<cpu::Isa::kAvx512Vnni>;
template struct Int8NormUnembed<cpu::Isa::kAvxVnni>;
template struct Int8NormUnembed<cpu::Isa::kAvx2>;
template struct Int8NormUnembed<cpu::Isa::kNeonDot>;
template struct Int8RowNormUnembed<cpu::Isa::kAmx>;
template struct Int8RowNormUnembed<cpu::Isa::kAvx512Vnni>;

}  // namespace nibble::ops
