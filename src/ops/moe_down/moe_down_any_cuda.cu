// moe_down of any shape and format (cuda_any): products by slot, then the choices of a token
// weighed in their order. d [T, H] f32, out; u [T * K, F] bf16 by slot; down [E, H, F] in kRows.
// Bytes beside the weights: 8 K H a token, as the products go through memory.
#include "cuda/launch.cuh"
#include "ops/gpu_matmul/product_any.h"
#include "ops/moe_down/moe_down.h"
#include "ops/scratch.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256;

// Grid (T, columns).
__global__ void __launch_bounds__(kThreads)
    combine_choices(float* d, const float* y, const int32_t* slot, const float* p, int top_k,
                    int hidden, bool adds) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= hidden) return;
  const int64_t t = blockIdx.x;
  float sum = adds ? d[t * hidden + column] : 0;
#pragma unroll 4
  for (int k = 0; k < top_k; ++k) {
    const int64_t from = __ldcg(slot + t * top_k + k);
    sum = fmaf(__ldcg(p + t * top_k + k), __ldcg(y + from * hidden + column), sum);
  }
  d[t * hidden + column] = sum;
}

}  // namespace

void moe_down_any(Ctx& cx, const Tensor& d, const Tensor& u, const Routing& routing,
                  const Weight& down) {
  CHECK(routing.logits == nullptr);
  if (routing.num_tokens == 0) return;
  const int64_t slots = int64_t{routing.num_tokens} * routing.top_k;
  const auto hidden = static_cast<int>(down.rows);
  float* const y = Scratch(cx.scratch).take<float>(slots * hidden);
  multiply_any(cx, down, u.as<uint16_t>(), routing, y);
  cuda::launch(cx.stream, combine_choices,
               {.grid = dim3(routing.num_tokens, (hidden + kThreads - 1) / kThreads),
                .block = dim3(kThreads)},
               d.as<float>(), y, routing.slot, routing.p, routing.top_k, hidden, routing.adds);
}

}  // namespace nibble::ops::gpu
