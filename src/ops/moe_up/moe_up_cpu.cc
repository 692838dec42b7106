#include <algorithm>

#include "cpu/thread_pool.h"
#include "ops/linear/expert_tasks.h"
#include "ops/linear/linear.h"
#include "ops/moe_up/moe_up.h"
#include "ops/store.h"

namespace nibble::ops {
namespace {

struct MoeUpScratch {
  MoeUpScratch(Scratch s, const MoeUpDesc& d, int64_t tokens, int threads)
      : linear(s, d.format, d.hidden, tokens, threads),
        gathered(s.take<const float*>(tokens * d.top_k)),
        y(s.take<float>(threads * tokens * kBlockRows)),
        used_bytes(s.used_bytes()) {}
  LinearScratch linear;
  const float** gathered;  // [T * K] the input of each slot
  float* y;                // [threads][T, kBlockRows] gates and ups of a block of rows
  int64_t used_bytes;
};

}  // namespace

int64_t scratch_bytes(const MoeUpDesc& desc, int64_t tokens, int threads) {
  return MoeUpScratch(Scratch(), desc, tokens, threads).used_bytes;
}

template <cpu::Isa kIsa>
void BlockedMoeUp<kIsa>::run(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                             const Weight& up, float limit) {
  const FloatKernels& kernels = float_kernels(kIsa);
  const int64_t hidden = up.cols, width = up.rows / 2, tokens = routing.num_tokens;
  const MoeUpDesc desc{hidden, width, up.experts, routing.top_k, up.format};
  const MoeUpScratch scratch(Scratch(cx.scratch), desc, tokens, cx.pool->size());
  arrange_inputs(cx, scratch.linear, up.format, h.as<float>(), tokens, hidden);
  for (int64_t slot = 0; slot < tokens * routing.top_k; ++slot)
    scratch.gathered[slot] = scratch.linear.x[routing.token[slot]];

  for_expert_blocks(cx, routing, up, [&](int64_t e, int64_t row, int64_t rows, int worker) {
    float* decoded = scratch.linear.decoded + worker * kBlockRows * hidden;
    float* y = scratch.y + worker * tokens * kBlockRows;
    const int64_t first = routing.offsets[e], count = routing.counts[e];
    block_product(kernels, up.expert(e).slice(row, rows), scratch.gathered + first, count, decoded,
                  y, kBlockRows);
    for (int64_t m = 0; m < count; ++m) {
      float* out = u.as<float>() + (first + m) * width + row / 2;
      kernels.swiglu(y + m * kBlockRows, out, rows / 2, limit);
      if (cx.activations == DType::kBF16)
        for (int64_t j = 0; j < rows / 2; ++j) out[j] = stored(cx.activations, out[j]);
    }
  });
}

template struct BlockedMoeUp<cpu::Isa::kAvx512>;
template struct BlockedMoeUp<cpu::Isa::kAvx2>;
template struct BlockedMoeUp<cpu::Isa::kNeon>;

}  // namespace nibble::ops
