#include "cpu/thread_pool.h"
#include "ops/linear/linear.h"
#include "ops/norm_unembed/norm_unembed.h"

namespace nibble::ops {
namespace {

struct NormUnembedScratch {
  NormUnembedScratch(Scratch s, const NormUnembedDesc& d, int64_t rows, int threads)
      : sums(s.take<float>(threads * d.hidden)),
        linear(s, d.format, d.hidden, rows, threads),
        used_bytes(s.used_bytes()) {}
  float* sums;  // [threads][H] x + d of one row
  LinearScratch linear;
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const NormUnembedDesc& desc, int64_t rows, int threads) {
  return NormUnembedScratch(Scratch(), desc, rows, threads).used_bytes;
}

template <cpu::Isa kIsa>
void BlockedNormUnembed<kIsa>::run(Ctx& cx, const Tensor& logits, const Tensor& h, const Tensor& x,
                                   const Tensor& d, const Norm& norm, const Weight& unembed,
                                   const Step& s) {
  const FloatKernels& kernels = float_kernels(kIsa);
  const int64_t hidden = unembed.cols;
  const NormUnembedDesc desc{hidden, unembed.rows, unembed.format};
  const NormUnembedScratch scratch(Scratch(cx.scratch), desc, s.num_out, cx.pool->size());
  cx.pool->parallel_for(s.num_out, 1, [&](int64_t r, int64_t end, int worker) {
    float* sum = scratch.sums + worker * hidden;
    for (; r < end; ++r) {
      const int64_t at = s.out_rows[r] * hidden;
      kernels.add_norm(sum, h.as<float>() + r * hidden, x.as<float>() + at, d.as<float>() + at,
                       norm, hidden, cx.activations == DType::kBF16);
    }
  });
  linear(cx, kernels, scratch.linear, logits.as<float>(), h.as<float>(), s.num_out, unembed);
}

template struct BlockedNormUnembed<cpu::Isa::kAvx512>;
template struct BlockedNormUnembed<cpu::Isa::kAvx2>;
template struct BlockedNormUnembed<cpu::Isa::kNeon>;

}  // namespace nibble::ops
