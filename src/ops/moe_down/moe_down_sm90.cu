// moe_down for many rows an expert: the grouped wgmma GEMM leaves a bf16 row for every slot, which
// combine() weighs and adds, or, over ranks, the norm behind the sum.
#include "ops/all_reduce/all_reduce.h"
#include "ops/all_reduce/gpu_ranks.h"
#include "ops/gpu_matmul/gemm_fp8_sm90.h"
#include "ops/moe_down/combine.h"
#include "ops/moe_down/moe_down.h"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

// [slots, H]. What is left lies at the end, where it stays while the op behind takes its own from
// the front.
uint16_t* rows_of(const Ctx& cx, Scratch& scratch, const Routing& r, int64_t hidden) {
  const int64_t n = int64_t{r.num_tokens} * r.top_k * hidden;
  if (!leaves_choices(cx, r.num_tokens)) return scratch.take<uint16_t>(n);
  const auto room = cx.scratch.first(cx.scratch.size() / 64 * 64);
  const auto bytes = static_cast<size_t>((2 * n + 63) / 64 * 64);
  CHECK(bytes <= room.size());
  return reinterpret_cast<uint16_t*>(room.last(bytes).data());
}

void combine_or_leave(Ctx& cx, const Tensor& d, const uint16_t* rows, const Routing& r) {
  if (leaves_choices(cx, r.num_tokens)) return ranks_of(cx).leave({rows, r.p, r.slot, r.top_k});
  combine(cx, d, rows, r);
}

}  // namespace

void moe_down_gemm(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                   const Weight& down) {
  if (routing.num_tokens == 0) return;
  const int32_t slots = routing.num_tokens * routing.top_k;
  Scratch scratch(cx.scratch);
  auto* const rows = rows_of(cx, scratch, routing, down.rows);
  gemm(cx, down, GemmOut::kBF16,
       {.x = u.data, .offsets = routing.offsets, .y = rows, .num_slots = slots});
  combine_or_leave(cx, d, rows, routing);
}

void moe_down_gemm_fp8(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                       const Weight& down) {
  if (routing.num_tokens == 0) return;
  const int32_t slots = routing.num_tokens * routing.top_k;
  Scratch scratch(cx.scratch);
  auto* const rows = rows_of(cx, scratch, routing, down.rows);
  gemm_fp8(cx, down, GemmOut::kBF16,
           {.x = u.data,
            .offsets = routing.offsets,
            .y = rows,
            .num_slots = slots,
            .x_scale_all = kExpertScale});
  combine_or_leave(cx, d, rows, routing);
}

void moe_down_unit_gemm_fp8(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                            const Weight& down) {
  if (routing.num_tokens == 0) return;
  const int32_t slots = routing.num_tokens * routing.top_k;
  Scratch scratch(cx.scratch);
  auto* const rows = rows_of(cx, scratch, routing, down.rows);
  const E4m3Rows x = quantize_rows(cx, scratch, u.as<uint16_t>(), slots, down.cols);
  gemm_fp8(cx, down, GemmOut::kBF16,
           {.x = x.codes,
            .offsets = routing.offsets,
            .y = rows,
            .num_slots = slots,
            .x_scale = x.scales});
  combine_or_leave(cx, d, rows, routing);
}

}  // namespace nibble::ops::gpu
