#include <algorithm>

#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/expert_tasks.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/moe_down/moe_down.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

template <typename Product>
struct MoeDownScratch {
  MoeDownScratch(Scratch s, const typename Product::Kernels* kernels, const MoeDownDesc& d,
                 int64_t tokens, int threads)
      : product(kernels, s,
                {d.format, d.width, tokens * d.top_k, tokens * d.top_k, d.experts, threads}),
        y(s.take<float>(tokens * d.top_k * d.hidden)),
        used_bytes(s.used_bytes()) {}
  Product product;
  float* y;  // [T * K, H] what each slot's expert says
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const MoeDownDesc& desc, int64_t tokens, int threads) {
  return most_scratch_bytes<MoeDownScratch>(desc, tokens, threads);
}

template <typename Product, cpu::Isa kIsa>
void CpuMoeDown<Product, kIsa>::run(Ctx& cx, const Tensor& d, const Tensor& u,
                                    const Routing& routing, const Weight& down) {
  const int64_t hidden = down.rows, tokens = routing.num_tokens;
  const MoeDownDesc desc{hidden, down.cols, down.experts, routing.top_k, down.format};
  MoeDownScratch<Product> scratch(Scratch(cx.scratch), &Product::kernels(kIsa), desc, tokens,
                                  cx.pool->size());
  // As on GPUs, where MXFP4's u has that scale if it is clamped. Without a site of its own:
  // gpt-oss's.
  const auto* problem = cx.site == nullptr ? nullptr : std::get_if<MoeDownDesc>(&cx.site->problem);
  const bool is_clamped = problem == nullptr || problem->act.is_clamped();
  scratch.product.take(
      cx, {.x = u.as<float>(),
           .sources = tokens * routing.top_k,
           .groups = down.experts,
           .offsets = routing.offsets,
           .e4m3_scale = is_clamped && down.format == Format::kMxfp4 ? kExpertScale : 0});

  for_expert_blocks<Product::kRows>(
      cx, routing, down, [&](int64_t e, int64_t row, int64_t rows, int worker) {
        scratch.product.multiply(down.expert(e).slice(row, rows), e, worker,
                                 scratch.y + routing.offsets[e] * hidden + row, hidden);
      });

  cx.pool->parallel_for(tokens, 1, [&](int64_t t, int64_t end, int) {
    for (; t < end; ++t) {
      float* out = d.as<float>() + t * hidden;
      if (!routing.adds) std::fill_n(out, hidden, 0.f);
      for (int64_t k = t * routing.top_k; k < (t + 1) * routing.top_k; ++k) {
        const float p = routing.p[k], *y = scratch.y + routing.slot[k] * hidden;
        for (int64_t n = 0; n < hidden; ++n) out[n] += p * y[n];
      }
    }
  });
}

template struct CpuMoeDown<FloatProduct, cpu::Isa::kAvx512>;
template struct CpuMoeDown<FloatProduct, cpu::Isa::kAvx2>;
template struct CpuMoeDown<FloatProduct, cpu::Isa::kNeon>;
template struct CpuMoeDown<FloatProduct, cpu::Isa::kScalar>;
template struct CpuMoeDown<Bf16Product, cpu::Isa::kAmx>;
template struct CpuMoeDown<Bf16Product, cpu::Isa::kAvx512Bf16>;
template struct CpuMoeDown<Bf16RowProduct, cpu::Isa::kAmx>;
template struct CpuMoeDown<Bf16RowProduct, cpu::Isa::kAvx512Bf16>;
template struct CpuMoeDown<FloatPanelProduct, cpu::Isa::kAvx512>;
template struct CpuMoeDown<FloatPanelProduct, cpu::Isa::kAvx2>;
template struct CpuMoeDown<FloatPanelProduct, cpu::Isa::kNeon>;
template struct CpuMoeDown<Int8Product, cpu::Isa::kAvx512Vnni>;
template struct CpuMoeDown<Int8Product, cpu::Isa::kAvxVnni>;
template struct CpuMoeDown<Int8Product, cpu::Isa::kAvx2>;
template struct CpuMoeDown<Int8Product, cpu::Isa::kNeonDot>;
template struct CpuMoeDown<Int8RowProduct, cpu::Isa::kAmx>;
template struct CpuMoeDown<Int8RowProduct, cpu::Isa::kAvx512Vnni>;

}  // namespace nibble::ops
