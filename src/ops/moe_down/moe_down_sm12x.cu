// moe_down by SM12x's block-scaled mma, of activations in E4M3 or E2M1.
#include "ops/gpu_matmul/gemm_scaled_sm12x.h"
#include "ops/moe_down/combine.h"
#include "ops/moe_down/moe_down.h"

namespace nibble::ops::gpu {
namespace {

// Of u in bf16.
void quantize_and_multiply(Ctx& cx, ActFormat to, const Tensor& d, const Tensor& u,
                           const Routing& routing, const Weight& down) {
  if (routing.num_tokens == 0) return;
  const int32_t slots = routing.num_tokens * routing.top_k;
  Scratch scratch(cx.scratch);
  auto* rows = scratch.take<uint16_t>(slots * down.rows);
  const sm12x::InputRows x = sm12x::quantize_rows(cx, scratch, to, down, u.as<uint16_t>(), slots);
  sm12x::gemm_scaled(cx, to, down, GemmOut::kBF16,
                     {.x = x.codes,
                      .offsets = routing.offsets,
                      .y = rows,
                      .num_slots = slots,
                      .x_scale = x.scales});
  combine(cx, d, rows, routing);
}

}  // namespace

void moe_down_block_scaled(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                           const Weight& down) {
  if (routing.num_tokens == 0) return;
  const int32_t slots = routing.num_tokens * routing.top_k;
  Scratch scratch(cx.scratch);
  auto* rows = scratch.take<uint16_t>(slots * down.rows);
  sm12x::gemm_scaled(cx, ActFormat::kFp8, down, GemmOut::kBF16,
                     {.x = u.data,
                      .offsets = routing.offsets,
                      .y = rows,
                      .num_slots = slots,
                      .x_scale_all = kExpertScale});
  combine(cx, d, rows, routing);
}

void moe_down_unit_block_scaled(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                                const Weight& down) {
  quantize_and_multiply(cx, ActFormat::kFp8, d, u, routing, down);
}

void moe_down_w4a4(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                   const Weight& down) {
  quantize_and_multiply(cx, ActFormat::kFp4, d, u, routing, down);
}

}  // namespace nibble::ops::gpu
