// The second half of moe_down behind GEMMs that leave a bf16 row for every slot: each token's are
// weighed and added in order of choice. (A slot's row is rounded once more than the twin's: 2^-9 of
// it; float32 rows would be twice the bytes between the two.) Bytes at T tokens: 2 K H + 4 H each:
// 35 KB at gpt-oss-120b's shape.
#include <cuda_bf16.h>

#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "ops/moe_down/combine.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 384;  // 360 groups of 8 columns at H = 2,880

// d [T, H] f32 = sum over k of p[t][k] * y[slot[t][k]]; y [T * K, H] bf16. A block a token.
__global__ void __launch_bounds__(kThreads)
    add_choices(float* d, const uint16_t* y, const float* p, const int32_t* slot, int top_k,
                int hidden, bool adds) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t t = blockIdx.x;
  for (int column = 8 * threadIdx.x; column < hidden; column += 8 * kThreads) {
    float sum[8] = {};
    auto* to = reinterpret_cast<float4*>(d + t * hidden + column);
    if (adds) {
      const float4 a = to[0], b = to[1];
      sum[0] = a.x, sum[1] = a.y, sum[2] = a.z, sum[3] = a.w;
      sum[4] = b.x, sum[5] = b.y, sum[6] = b.z, sum[7] = b.w;
    }
#pragma unroll 4  // loads of four rows in flight
    for (int k = 0; k < top_k; ++k) {
      const float weight = p[t * top_k + k];
      const uint4 row = cuda::load16(y + int64_t{slot[t * top_k + k]} * hidden + column);
      const uint32_t words[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[2 * i] += weight * cuda::bf16_lo(words[i]);
        sum[2 * i + 1] += weight * cuda::bf16_hi(words[i]);
      }
    }
    to[0] = {sum[0], sum[1], sum[2], sum[3]};
    to[1] = {sum[4], sum[5], sum[6], sum[7]};
  }
}

}  // namespace

void combine(Ctx& cx, const Tensor& d, const uint16_t* y, const Routing& routing) {
  cuda::launch(cx.stream, add_choices,
               {.grid = dim3(static_cast<unsigned>(routing.num_tokens)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               d.as<float>(), y, routing.p, routing.slot, routing.top_k, static_cast<int>(d.dim(1)),
               routing.adds);
}

}  // namespace nibble::ops::gpu
