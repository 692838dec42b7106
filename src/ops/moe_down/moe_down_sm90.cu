// moe_down for many rows an expert: the grouped wgmma GEMM leaves a bf16 row for every slot, which
// combine() weighs and adds.
#include "ops/gpu_matmul/gemm_fp8_sm90.h"
#include "ops/moe_down/combine.h"
#include "ops/moe_down/moe_down.h"
#include "ops/scratch.h"

namespace nibble::ops::gpu {

void moe_down_gemm(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                   const Weight& down) {
  if (routing.num_tokens == 0) return;
  const int32_t slots = routing.num_tokens * routing.top_k;
  Scratch scratch(cx.scratch);
  auto* rows = scratch.take<uint16_t>(slots * down.rows);
  gemm(cx, down, GemmOut::kBF16,
       {.x = u.data, .offsets = routing.offsets, .y = rows, .num_slots = slots});
  combine(cx, d, rows, routing);
}

void moe_down_gemm_fp8(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                       const Weight& down) {
  if (routing.num_tokens == 0) return;
  const int32_t slots = routing.num_tokens * routing.top_k;
  Scratch scratch(cx.scratch);
  auto* rows = scratch.take<uint16_t>(slots * down.rows);
  gemm_fp8(cx, down, GemmOut::kBF16,
           {.x = u.data,
            .offsets = routing.offsets,
            .y = rows,
            .num_slots = slots,
            .x_scale_all = kExpertScale});
  combine(cx, d, rows, routing);
}

void moe_down_unit_gemm_fp8(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                            const Weight& down) {
  if (routing.num_tokens == 0) return;
  const int32_t slots = routing.num_tokens * routing.top_k;
  Scratch scratch(cx.scratch);
  auto* rows = scratch.take<uint16_t>(slots * down.rows);
  const E4m3Rows x = quantize_rows(cx, scratch, u.as<uint16_t>(), slots, down.cols);
  gemm_fp8(cx, down, GemmOut::kBF16,
           {.x = x.codes,
            .offsets = routing.offsets,
            .y = rows,
            .num_slots = slots,
            .x_scale = x.scales});
  combine(cx, d, rows, routing);
}

}  // namespace nibble::ops::gpu
