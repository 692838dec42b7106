// moe_up for some rows an expert, by wgmma in FP8 that keeps bf16's bits, or of E4M3 activations
// (gemm_narrow_sm90.cuh).
#include "cuda/bf16.cuh"
#include "cuda/fp8.cuh"
#include "ops/gpu_matmul/gemm_fp8_sm90.h"
#include "ops/gpu_matmul/gemm_narrow_sm90.cuh"
#include "ops/moe_up/moe_up.h"
#include "ops/moe_up/swiglu.cuh"

namespace nibble::ops::gpu {
namespace {

struct NarrowUp {
  bool is_chosen_before;
  uint16_t* u;  // [slots, width] bf16; NarrowUpE4m3: as many E4M3 in E4M3 order, by kExpertScale
  const int32_t *token, *offsets;
  int experts, width, slots;
  Swiglu act;

  __device__ int row_of(int slot) const { return __ldcg(token + slot); }
  __device__ void store(int row, int weight_row, float gate, float up) const {
    u[int64_t{row} * width + weight_row / 2] = cuda::bf16_bits(sm90::swiglu(gate, up, act));
  }
};

struct NarrowUpRelu2 : NarrowUp {
  __device__ void store(int row, int weight_row, float first, float second) const {
    *reinterpret_cast<uint32_t*>(u + int64_t{row} * width + weight_row) =
        sm90::pack(relu2(first), relu2(second));
  }
};

struct NarrowUpE4m3 : NarrowUp {
  __device__ void store(int row, int weight_row, float gate, float up) const {
    const uint32_t f = static_cast<uint32_t>(weight_row) / 2;
    const uint32_t place = f / 32 * 32 + f % 2 * 16 + f % 8 / 2 * 4 + f % 32 / 8;
    const float v = sm90::swiglu(gate, up, act) * (1 / kExpertScale);
    reinterpret_cast<uint8_t*>(u)[int64_t{row} * width + place] =
        static_cast<uint8_t>(cuda::e4m3_pair(v, v));
  }
};

NarrowUp narrow_up(const Ctx& cx, const Tensor& u, const Routing& routing, const Weight& up,
                   const Swiglu& act) {
  return {.is_chosen_before = cx.stream.order.is_complete(routing.ids),
          .u = u.as<uint16_t>(),
          .token = routing.token,
          .offsets = routing.offsets,
          .experts = routing.num_experts,
          .width = static_cast<int>(up.rows / act.rows_each()),
          .slots = routing.num_tokens * routing.top_k,
          .act = act};
}

}  // namespace

void moe_up_narrow(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                   const Weight& up, const Swiglu& act) {
  if (routing.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  const auto* const x = h.as<uint16_t>();
  const NarrowUp op = narrow_up(cx, u, routing, up, act);
  if (act.is_relu2())
    sm90::launch_narrow(cx, up, sm90::block_columns(up, x, op.slots), NarrowUpRelu2{op});
  else if (up.format == Format::kNvfp4)
    sm90::launch_narrow(cx, up, sm90::block_columns(up, x, op.slots), op);
  else
    sm90::launch_narrow(cx, scratch, up, x, routing.num_tokens, op);
}

void moe_up_narrow_fp8(Ctx& cx, const Tensor& u, const Tensor& h, const Routing& routing,
                       const Weight& up, const Swiglu& act) {
  if (routing.num_tokens == 0) return;
  Scratch scratch(cx.scratch);
  const E4m3Rows x = quantize_rows(cx, scratch, h.as<uint16_t>(), routing.num_tokens, up.cols);
  sm90::launch_narrow(
      cx, up,
      sm90::E4m3Columns{
          .codes = x.codes, .scales = x.scales, .row_exponents = row_exponents_of(cx)},
      NarrowUpE4m3{narrow_up(cx, u, routing, up, act)});
}

}  // namespace nibble::ops::gpu
