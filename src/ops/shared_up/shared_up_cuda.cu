// shared_up by products that leave float32: of any shape and format (cuda_any:
// ops/gpu_matmul/product_any.cuh), of few tokens with NVFP4 or FP8 weights (unit_gemv.cuh), and of
// one with NVFP4 (unit_one.cuh); then weigh_up, a block a token. The last two leave relu^2 that is
// not weighed themselves. u [T, F] bf16, out; h [T, H] bf16; up [2F, H] in kRows, or in
// kTiles16x64; gate [H] bf16. Bytes beside the weights: 2 H + 18 F a token, as the products go
// through memory.
#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "ops/gpu_matmul/product_any.h"
#include "ops/gpu_matmul/unit_products.h"
#include "ops/moe_up/swiglu.cuh"
#include "ops/norm/add_norm.cuh"
#include "ops/scratch.h"
#include "ops/shared_up/shared_up.h"
#include "ops/shared_up/weigh_up.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;

__global__ void __launch_bounds__(kThreads)
    weigh_rows(uint16_t* u, const uint16_t* h, const float* y, const uint16_t* gate, int hidden,
               int width, const Swiglu act) {
  __shared__ float sums[kWarps];
  const int64_t t = blockIdx.x;
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  float logit = 0;
  for (int i = threadIdx.x; gate != nullptr && i < hidden; i += kThreads)
    logit = fmaf(cuda::bf16_value(h[t * hidden + i]), cuda::bf16_value(gate[i]), logit);
  logit = warp_sum(logit);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = logit;
  __syncthreads();
  logit = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) logit += sums[w];
  const float p = gate == nullptr ? 1 : 1 / (1 + __expf(-logit));
  for (int j = threadIdx.x; j < width; j += kThreads) {
    if (has_no_gate(act)) {
      u[t * width + j] = cuda::bf16_bits(p * relu2(__ldcg(y + t * width + j)));
      continue;
    }
    const float2 pair = __ldcg(reinterpret_cast<const float2*>(y + (t * width + j) * 2));
    u[t * width + j] = cuda::bf16_bits(p * swiglu(pair.x, pair.y, act));
  }
}

}  // namespace

void weigh_up(Ctx& cx, const Tensor& u, const Tensor& h, const float* y, const uint16_t* gate,
              const Swiglu& act) {
  cuda::launch(cx.stream, weigh_rows,
               {.grid = dim3(static_cast<unsigned>(h.dim(0))),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               u.as<uint16_t>(), h.as<uint16_t>(), y, gate, static_cast<int>(h.dim(1)),
               static_cast<int>(u.dim(1)), act);
}

void shared_up_any(Ctx& cx, const Tensor& u, const Tensor& h, const Weight& up,
                   const uint16_t* gate, const Swiglu& act) {
  if (h.dim(0) == 0) return;
  float* const y = Scratch(cx.scratch).take<float>(h.dim(0) * up.rows);
  multiply_any(cx, up, h.as<uint16_t>(), h.dim(0), y);
  weigh_up(cx, u, h, y, gate, act);
}

void shared_up_one(Ctx& cx, const Tensor& u, const Tensor& h, const Weight& up,
                   const uint16_t* gate, const Swiglu& act) {
  if (h.dim(0) == 0) return;
  if (gate == nullptr && act.is_relu2())
    return relu2_one(cx, up, h.as<uint16_t>(), u.as<uint16_t>());
  float* const y = Scratch(cx.scratch).take<float>(up.rows);
  multiply_one(cx, up, h.as<uint16_t>(), 1, y);
  weigh_up(cx, u, h, y, gate, act);
}

void shared_up_few(Ctx& cx, const Tensor& u, const Tensor& h, const Weight& up,
                   const uint16_t* gate, const Swiglu& act) {
  if (h.dim(0) == 0) return;
  if (gate == nullptr && act.is_relu2())
    return relu2_few(cx, up, h.as<uint16_t>(), h.dim(0), u.as<uint16_t>());
  float* const y = Scratch(cx.scratch).take<float>(h.dim(0) * up.rows);
  multiply_few(cx, up, h.as<uint16_t>(), h.dim(0), y);
  weigh_up(cx, u, h, y, gate, act);
}

}  // namespace nibble::ops::gpu
