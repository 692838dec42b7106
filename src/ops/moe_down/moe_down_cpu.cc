#include "cpu/thread_pool.h"
#include "ops/linear/expert_tasks.h"
#include "ops/linear/linear.h"
#include "ops/moe_down/moe_down.h"

namespace nibble::ops {
namespace {

struct MoeDownScratch {
  MoeDownScratch(Scratch s, const MoeDownDesc& d, int64_t tokens, int threads)
      : linear(s, d.format, d.width, tokens * d.top_k, threads),
        y(s.take<float>(tokens * d.top_k * d.hidden)),
        used_bytes(s.used_bytes()) {}
  LinearScratch linear;
  float* y;  // [T * K, H] what each slot's expert says
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const MoeDownDesc& desc, int64_t tokens, int threads) {
  return MoeDownScratch(Scratch(), desc, tokens, threads).used_bytes;
}

template <cpu::Isa kIsa>
void BlockedMoeDown<kIsa>::run(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                               const Weight& down) {
  const FloatKernels& kernels = float_kernels(kIsa);
  const int64_t hidden = down.rows, width = down.cols, tokens = routing.num_tokens;
  const MoeDownDesc desc{hidden, width, down.experts, routing.top_k, down.format};
  const MoeDownScratch scratch(Scratch(cx.scratch), desc, tokens, cx.pool->size());
  arrange_inputs(cx, scratch.linear, down.format, u.as<float>(), tokens * routing.top_k, width);

  for_expert_blocks(cx, routing, down, [&](int64_t e, int64_t row, int64_t rows, int worker) {
    const int64_t first = routing.offsets[e];
    block_product(kernels, down.expert(e).slice(row, rows), scratch.linear.x + first,
                  routing.counts[e], scratch.linear.decoded + worker * kBlockRows * width,
                  scratch.y + first * hidden + row, hidden);
  });

  cx.pool->parallel_for(tokens, 1, [&](int64_t t, int64_t end, int) {
    for (; t < end; ++t) {
      float* out = d.as<float>() + t * hidden;
      for (int64_t n = 0; n < hidden; ++n) out[n] = 0;
      for (int64_t k = t * routing.top_k; k < (t + 1) * routing.top_k; ++k) {
        const float p = routing.p[k], *y = scratch.y + routing.slot[k] * hidden;
        for (int64_t n = 0; n < hidden; ++n) out[n] += p * y[n];
      }
    }
  });
}

template struct BlockedMoeDown<cpu::Isa::kAvx512>;
template struct BlockedMoeDown<cpu::Isa::kAvx2>;
template struct BlockedMoeDown<cpu::Isa::kNeon>;

}  // namespace nibble::ops
