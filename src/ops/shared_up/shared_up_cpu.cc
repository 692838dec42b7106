#include <algorithm>

#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/product.h"
#include "ops/shared_up/shared_up.h"
#include "ops/store.h"

namespace nibble::ops {
namespace {

template <typename Product>
struct SharedUpScratch {
  SharedUpScratch(Scratch s, const typename Product::Kernels* kernels, const SharedUpDesc& d,
                  int64_t tokens, int threads)
      : product(kernels, s, {d.format, d.hidden, tokens, tokens, 1, threads}),
        y(s.take<float>(threads * tokens * Product::kRows)),
        p(s.take<float>(tokens)),
        used_bytes(s.used_bytes()) {}
  Product product;
  float* y;  // [threads][T, kRows] gates and ups of a block of rows
  float* p;  // [T] what each token's is weighed by
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const SharedUpDesc& desc, int64_t tokens, int threads) {
  return most_scratch_bytes<SharedUpScratch>(desc, tokens, threads);
}

template <typename Product, cpu::Isa kIsa>
void CpuSharedUp<Product, kIsa>::run(Ctx& cx, const Tensor& u, const Tensor& h, const Weight& up,
                                     const uint16_t* gate, const Swiglu& act) {
  constexpr int64_t kRows = Product::kRows;
  static_assert(kRows % 2 == 0);  // gates and ups are in one block
  const FloatKernels& floats = float_kernels(float_isa(kIsa));
  const int64_t hidden = up.cols, tokens = h.dim(0), each = act.rows_each(), width = up.rows / each;
  SharedUpScratch<Product> scratch(Scratch(cx.scratch), &Product::kernels(kIsa),
                                   {hidden, width, up.format}, tokens, cx.pool->size());
  const Weight row{.format = Format::kBF16,
                   .rows = 1,
                   .cols = hidden,
                   .codes = reinterpret_cast<const uint8_t*>(gate)};
  cx.pool->parallel_for(tokens, 1, [&](int64_t t, int64_t end, int) {
    for (; t < end; ++t) {
      scratch.p[t] = 1;
      if (gate == nullptr) continue;
      const float* const x = h.as<float>() + t * hidden;
      float logit;
      floats.dot_weight(row, &x, 1, &logit, 1);
      floats.gate(scratch.p + t, &logit, 1);
    }
  });
  const int32_t offsets[] = {0, static_cast<int32_t>(tokens)};
  scratch.product.take(cx,
                       {.x = h.as<float>(), .sources = tokens, .groups = 1, .offsets = offsets});
  const int64_t blocks = (up.rows + kRows - 1) / kRows;
  cx.pool->parallel_blocks(blocks, [&](int64_t block, int64_t end, int worker) {
    float* y = scratch.y + worker * tokens * kRows;
    for (; block < end; ++block) {
      const int64_t first = block * kRows, rows = std::min<int64_t>(kRows, up.rows - first);
      scratch.product.multiply(up.slice(first, rows), 0, worker, y, kRows);
      for (int64_t t = 0; t < tokens; ++t) {
        float* to = u.as<float>() + t * width + first / each;
        floats.swiglu(y + t * kRows, to, rows / each, act);
        for (int64_t j = 0; j < rows / each; ++j)
          to[j] = stored(cx.activations, to[j] * scratch.p[t]);
      }
    }
  });
}

template struct CpuSharedUp<FloatProduct, cpu::Isa::kAvx512>;
template struct CpuSharedUp<FloatProduct, cpu::Isa::kAvx2>;
template struct CpuSharedUp<FloatProduct, cpu::Isa::kNeon>;
template struct CpuSharedUp<FloatProduct, cpu::Isa::kScalar>;
template struct CpuSharedUp<Bf16Product, cpu::Isa::kAmx>;
template struct CpuSharedUp<Bf16Product, cpu::Isa::kAvx512Bf16>;
template struct CpuSharedUp<Bf16RowProduct, cpu::Isa::kAmx>;
template struct CpuSharedUp<Bf16RowProduct, cpu::Isa::kAvx512Bf16>;
template struct CpuSharedUp<FloatPanelProduct, cpu::Isa::kAvx512>;
template struct CpuSharedUp<FloatPanelProduct, cpu::Isa::kAvx2>;
template struct CpuSharedUp<FloatPanelProduct, cpu::Isa::kNeon>;
template struct CpuSharedUp<Int8Product, cpu::Isa::kAvx512Vnni>;
template struct CpuSharedUp<Int8Product, cpu::Isa::kAvxVnni>;
template struct CpuSharedUp<Int8Product, cpu::Isa::kAvx2>;
template struct CpuSharedUp<Int8Product, cpu::Isa::kNeonDot>;
template struct CpuSharedUp<Int8RowProduct, cpu::Isa::kAmx>;
template struct CpuSharedUp<Int8RowProduct, cpu::Isa::kAvx512Vnni>;

}  // namespace nibble::ops
