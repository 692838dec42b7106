#include "cpu/thread_pool.h"
#include "ops/linear/linear.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops {
namespace {

struct OutProjScratch {
  OutProjScratch(Scratch s, const OutProjDesc& d, int64_t tokens, int threads)
      : linear(s, d.format, d.width, tokens, threads), used_bytes(s.used_bytes()) {}
  LinearScratch linear;
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const OutProjDesc& desc, int64_t tokens, int threads) {
  return OutProjScratch(Scratch(), desc, tokens, threads).used_bytes;
}

template <cpu::Isa kIsa>
void BlockedOutProj<kIsa>::run(Ctx& cx, const Tensor& d, const Tensor& att, const Weight& out,
                               const Step& s) {
  const OutProjDesc desc{out.rows, out.cols, out.format};
  const OutProjScratch scratch(Scratch(cx.scratch), desc, s.num_tokens, cx.pool->size());
  linear(cx, float_kernels(kIsa), scratch.linear, d.as<float>(), att.as<float>(), s.num_tokens,
         out);
}

template struct BlockedOutProj<cpu::Isa::kAvx512>;
template struct BlockedOutProj<cpu::Isa::kAvx2>;
template struct BlockedOutProj<cpu::Isa::kNeon>;

}  // namespace nibble::ops
