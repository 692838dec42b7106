// moe_down by SM12x's block-scaled mma, of E4M3 activations.
#include "ops/gpu_matmul/gemm_fp8_sm12x.h"
#include "ops/moe_down/combine.h"
#include "ops/moe_down/moe_down.h"

namespace nibble::ops::gpu {

void moe_down_block_scaled(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                           const Weight& down) {
  if (routing.num_tokens == 0) return;
  const int32_t slots = routing.num_tokens * routing.top_k;
  Scratch scratch(cx.scratch);
  auto* rows = scratch.take<uint16_t>(slots * down.rows);
  sm12x::gemm_fp8(cx, down, GemmOut::kBF16,
                  {.x = u.data,
                   .offsets = routing.offsets,
                   .y = rows,
                   .num_slots = slots,
                   .x_scale_all = kExpertScale});
  combine(cx, d, rows, routing);
}

void moe_down_unit_block_scaled(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                                const Weight& down) {
  if (routing.num_tokens == 0) return;
  const int32_t slots = routing.num_tokens * routing.top_k;
  Scratch scratch(cx.scratch);
  auto* rows = scratch.take<uint16_t>(slots * down.rows);
  const E4m3Rows x = sm12x::quantize_rows(cx, scratch, down, u.as<uint16_t>(), slots);
  sm12x::gemm_fp8(cx, down, GemmOut::kBF16,
                  {.x = x.codes,
                   .offsets = routing.offsets,
                   .y = rows,
                   .num_slots = slots,
                   .x_scale = x.scales});
  combine(cx, d, rows, routing);
}

}  // namespace nibble::ops::gpu
