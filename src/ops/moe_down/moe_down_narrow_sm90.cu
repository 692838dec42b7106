// moe_down for some rows an expert, by wgmma in FP8 that keeps bf16's bits, or of E4M3 activations
// (gemm_narrow_sm90.cuh).
#include "ops/gpu_matmul/gemm_fp8_sm90.h"
#include "ops/gpu_matmul/gemm_narrow_sm90.cuh"
#include "ops/moe_down/down_by_slot.cuh"
#include "ops/moe_down/moe_down.h"

namespace nibble::ops::gpu {
namespace {

struct NarrowDown {
  bool is_chosen_before;
  uint16_t* y;  // [slots, H] bf16
  const int32_t* offsets;
  int experts, hidden, slots;

  __device__ int row_of(int slot) const { return slot; }
  __device__ void store(int slot, int row, float a, float b) const {
    *reinterpret_cast<uint32_t*>(y + int64_t{slot} * hidden + row) = sm90::pack(a, b);
  }
};

NarrowDown narrow_down(const Ctx& cx, uint16_t* y, const Routing& routing, const Weight& down) {
  return {.is_chosen_before = cx.stream.order.is_complete(routing.ids),
          .y = y,
          .offsets = routing.offsets,
          .experts = routing.num_experts,
          .hidden = static_cast<int>(down.rows),
          .slots = routing.num_tokens * routing.top_k};
}

void narrow_nvfp4(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                  const Weight& down) {
  Scratch scratch(cx.scratch);
  auto* const y = scratch.take<uint16_t>(int64_t{routing.num_tokens} * routing.top_k * down.rows);
  const NarrowDown op = narrow_down(cx, y, routing, down);
  sm90::launch_narrow(cx, down, sm90::block_columns(down, u.as<uint16_t>(), op.slots), op);
  combine_few(cx, d, y, routing);
}

}  // namespace

void moe_down_narrow(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                     const Weight& down) {
  if (routing.num_tokens == 0) return;
  if (down.format == Format::kNvfp4) return narrow_nvfp4(cx, d, u, routing, down);
  down_by_slot(cx, d, u, routing, down, [&](const DownBySlot& op, Scratch& scratch) {
    sm90::launch_narrow(cx, scratch, down, op.u, op.slots, op);
  });
}

void moe_down_narrow_fp8(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                         const Weight& down) {
  if (routing.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  auto* const y = scratch.take<uint16_t>(int64_t{routing.num_tokens} * routing.top_k * down.rows);
  sm90::launch_narrow(cx, down,
                      sm90::E4m3Columns{.codes = static_cast<const uint8_t*>(u.data),
                                        .scale_all = kExpertScale,
                                        .row_exponents = row_exponents_of(cx)},
                      narrow_down(cx, y, routing, down));
  combine(cx, d, y, routing);
}

}  // namespace nibble::ops::gpu
