#include <algorithm>

#include "cpu/thread_pool.h"
#include "ops/cpu_matmul/product.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/store.h"

namespace nibble::ops {
namespace {

template <typename Product>
struct MlpUpScratch {
  MlpUpScratch(Scratch s, const typename Product::Kernels* kernels, const MlpUpDesc& d,
               int64_t tokens, int threads)
      : product(kernels, s, {d.format, d.hidden, tokens, tokens, 1, threads}),
        y(s.take<float>(threads * tokens * Product::kRows)),
        used_bytes(s.used_bytes()) {}
  Product product;
  float* y;  // [threads][T, kRows] gates and ups of a block of rows
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const MlpUpDesc& desc, int64_t tokens, int threads) {
  return most_scratch_bytes<MlpUpScratch>(desc, tokens, threads);
}

template <typename Product, cpu::Isa kIsa>
void CpuMlpUp<Product, kIsa>::run(Ctx& cx, const MlpUpOut& out, const Tensor& x, const Tensor& d,
                                  const Norm& norm, const Weight& up, const Swiglu& act) {
  constexpr int64_t kRows = Product::kRows;
  static_assert(kRows % 2 == 0);  // gates and ups are in one block
  const FloatKernels& floats = float_kernels(float_isa(kIsa));
  const int64_t hidden = up.cols, tokens = x.dim(0), each = act.rows_each(), width = up.rows / each;
  MlpUpScratch<Product> scratch(Scratch(cx.scratch), &Product::kernels(kIsa),
                                {hidden, width, up.format}, tokens, cx.pool->size());
  cx.pool->parallel_for(tokens, 1, [&](int64_t t, int64_t end, int) {
    for (; t < end; ++t)
      floats.add_norm(out.y.as<float>() + t * hidden, out.h.as<float>() + t * hidden,
                      x.as<float>() + t * hidden, d.as<float>() + t * hidden, norm, hidden,
                      cx.activations == DType::kBF16);
  });
  const int32_t offsets[] = {0, static_cast<int32_t>(tokens)};
  scratch.product.take(
      cx, {.x = out.h.as<float>(), .sources = tokens, .groups = 1, .offsets = offsets});
  const int64_t blocks = (up.rows + kRows - 1) / kRows;
  cx.pool->parallel_blocks(blocks, [&](int64_t block, int64_t end, int worker) {
    float* y = scratch.y + worker * tokens * kRows;
    for (; block < end; ++block) {
      const int64_t row = block * kRows, rows = std::min<int64_t>(kRows, up.rows - row);
      scratch.product.multiply(up.slice(row, rows), 0, worker, y, kRows);
      for (int64_t t = 0; t < tokens; ++t) {
        float* u = out.u.as<float>() + t * width + row / each;
        floats.swiglu(y + t * kRows, u, rows / each, act);
        if (cx.activations == DType::kBF16)
          for (int64_t j = 0; j < rows / each; ++j) u[j] = stored(cx.activations, u[j]);
      }
    }
  });
}

template struct CpuMlpUp<FloatProduct, cpu::Isa::kAvx512>;
template struct CpuMlpUp<FloatProduct, cpu::Isa::kAvx2>;
template struct CpuMlpUp<FloatProduct, cpu::Isa::kNeon>;
template struct CpuMlpUp<FloatProduct, cpu::Isa::kScalar>;
template struct CpuMlpUp<Bf16Product, cpu::Isa::kAmx>;
template struct CpuMlpUp<Bf16Product, cpu::Isa::kAvx512Bf16>;
template struct CpuMlpUp<Bf16RowProduct, cpu::Isa::kAmx>;
template struct CpuMlpUp<Bf16RowProduct, cpu::Isa::kAvx512Bf16>;
template struct CpuMlpUp<FloatPanelProduct, cpu::Isa::kAvx512>;
template struct CpuMlpUp<FloatPanelProduct, cpu::Isa::kAvx2>;
template struct CpuMlpUp<FloatPanelProduct, cpu::Isa::kNeon>;
template struct CpuMlpUp<Int8Product, cpu::Isa::kAvx512Vnni>;
template struct CpuMlpUp<Int8Product, cpu::Isa::kAvxVnni>;
template struct CpuMlpUp<Int8Product, cpu::Isa::kAvx2>;
template struct CpuMlpUp<Int8Product, cpu::Isa::kNeonDot>;
template struct CpuMlpUp<Int8RowProduct, cpu::Isa::kAmx>;
template struct CpuMlpUp<Int8RowProduct, cpu::Isa::kAvx512Vnni>;

}  // namespace nibble::ops
