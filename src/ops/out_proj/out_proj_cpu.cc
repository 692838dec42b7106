#include "cpu/thread_pool.h"
#include "ops/linear/product.h"
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

template <typename Product, cpu::Isa kIsa>
void run_with(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out, const Step& s) {
  const OutProjDesc desc{out.rows, out.cols, out.format};
  OutProjScratch<Product> scratch(Scratch(cx.scratch), &Product::kernels(kIsa), desc, s.num_tokens,
                                  cx.pool->size());
  linear(cx, scratch.product, d.as<float>(), att.as<float>(), s.num_tokens, out);
}

}  // namespace

int64_t scratch_bytes(const OutProjDesc& desc, int64_t tokens, int threads) {
  return most_scratch_bytes<OutProjScratch>(desc, tokens, threads);
}

template <cpu::Isa kIsa>
void BlockedOutProj<kIsa>::run(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                               const Step& s) {
  run_with<FloatProduct, kIsa>(cx, d, att, out, s);
}

template <cpu::Isa kIsa>
void Fp8OutProj<kIsa>::run(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                           const Step& s) {
  run_with<Fp8Product, kIsa>(cx, d, att, out, s);
}

template <cpu::Isa kIsa>
void Bf16OutProj<kIsa>::run(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                            const Step& s) {
  run_with<Bf16Product, kIsa>(cx, d, att, out, s);
}

template <cpu::Isa kIsa>
void Bf16RowOutProj<kIsa>::run(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                               const Step& s) {
  run_with<Bf16RowProduct, kIsa>(cx, d, att, out, s);
}

template <cpu::Isa kIsa>
void Int8OutProj<kIsa>::run(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                            const Step& s) {
  run_with<Int8Product, kIsa>(cx, d, att, out, s);
}

template <cpu::Isa kIsa>
void Int8RowOutProj<kIsa>::run(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                               const Step& s) {
  run_with<Int8RowProduct, kIsa>(cx, d, att, out, s);
}

template struct BlockedOutProj<cpu::Isa::kAvx512>;
template struct BlockedOutProj<cpu::Isa::kAvx2>;
template struct BlockedOutProj<cpu::Isa::kNeon>;
template struct Bf16OutProj<cpu::Isa::kAmx>;
template struct Bf16OutProj<cpu::Isa::kAvx512Bf16>;
template struct Bf16RowOutProj<cpu::Isa::kAmx>;
template struct Fp8OutProj<cpu::Isa::kAvx512>;
template struct Fp8OutProj<cpu::Isa::kAvx2>;
template struct Fp8OutProj<cpu::Isa::kNeon>;
template struct Int8OutProj<cpu::Isa::kAvx512Vnni>;
template struct Int8OutProj<cpu::Isa::kAvxVnni>;
template struct Int8OutProj<cpu::Isa::kAvx2>;
template struct Int8OutProj<cpu::Isa::kNeonDot>;
template struct Int8RowOutProj<cpu::Isa::kAmx>;
template struct Int8RowOutProj<cpu::Isa::kAvx512Vnni>;

}  // namespace nibble::ops
