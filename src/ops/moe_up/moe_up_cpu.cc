#include <algorithm>

#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/expert_tasks.h"
#include "ops/moe_up/moe_up.h"
#include "ops/store.h"

namespace nibble::ops {
namespace {

template <typename Product>
struct MoeUpScratch {
  MoeUpScratch(Scratch s, const typename Product::Kernels* kernels, const MoeUpDesc& d,
               int64_t tokens, int threads)
      : product(kernels, s, {d.format, d.hidden, tokens, tokens * d.top_k, d.experts, threads}),
        y(s.take<float>(threads * tokens * Product::kRows)),
        used_bytes(s.used_bytes()) {}
  Product product;
  float* y;  // [threads][T, kRows] gates and ups of a block of rows
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const MoeUpDesc& desc, int64_t tokens, int threads) {
  return most_scratch_bytes<MoeUpScratch>(desc, tokens, threads);
}

template <typename Product, cpu::Isa kIsa>
void CpuMoeUp<Product, kIsa>::run(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                                  const Weight& up, const Swiglu& act) {
  constexpr int64_t kRows = Product::kRows;
  const FloatKernels& floats = float_kernels(float_isa(kIsa));
  const int64_t each = act.rows_each(), width = up.rows / each, tokens = routing.num_tokens;
  const MoeUpDesc desc{up.cols, width, up.experts, routing.top_k, up.format};
  MoeUpScratch<Product> scratch(Scratch(cx.scratch), &Product::kernels(kIsa), desc, tokens,
                                cx.pool->size());
  scratch.product.take(cx, {.x = h.as<float>(),
                            .sources = tokens,
                            .groups = up.experts,
                            .offsets = routing.offsets,
                            .row = routing.token});

  for_expert_blocks<kRows>(cx, routing, up, [&](int64_t e, int64_t row, int64_t rows, int worker) {
    float* y = scratch.y + worker * tokens * kRows;
    scratch.product.multiply(up.expert(e).slice(row, rows), e, worker, y, kRows);
    for (int64_t m = 0; m < routing.counts[e]; ++m) {
      float* out = u.as<float>() + (routing.offsets[e] + m) * width + row / each;
      floats.swiglu(y + m * kRows, out, rows / each, act);
      if (cx.activations == DType::kBF16)
        for (int64_t j = 0; j < rows / each; ++j) out[j] = stored(cx.activations, out[j]);
    }
  });
}

template struct CpuMoeUp<FloatProduct, cpu::Isa::kAvx512>;
template struct CpuMoeUp<FloatProduct, cpu::Isa::kAvx2>;
template struct CpuMoeUp<FloatProduct, cpu::Isa::kNeon>;
template struct CpuMoeUp<FloatProduct, cpu::Isa::kScalar>;
template struct CpuMoeUp<Bf16Product, cpu::Isa::kAmx>;
template struct CpuMoeUp<Bf16Product, cpu::Isa::kAvx512Bf16>;
template struct CpuMoeUp<Bf16RowProduct, cpu::Isa::kAmx>;
template struct CpuMoeUp<Bf16RowProduct, cpu::Isa::kAvx512Bf16>;
template struct CpuMoeUp<FloatPanelProduct, cpu::Isa::kAvx512>;
template struct CpuMoeUp<FloatPanelProduct, cpu::Isa::kAvx2>;
template struct CpuMoeUp<FloatPanelProduct, cpu::Isa::kNeon>;
template struct CpuMoeUp<Int8Product, cpu::Isa::kAvx512Vnni>;
template struct CpuMoeUp<Int8Product, cpu::Isa::kAvxVnni>;
template struct CpuMoeUp<Int8Product, cpu::Isa::kAvx2>;
template struct CpuMoeUp<Int8Product, cpu::Isa::kNeonDot>;
template struct CpuMoeUp<Int8RowProduct, cpu::Isa::kAmx>;
template struct CpuMoeUp<Int8RowProduct, cpu::Isa::kAvx512Vnni>;

}  // namespace nibble::ops
