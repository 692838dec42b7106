// Bytes: 4 (slices + 1) a float, from L2.
#include "cuda/launch.cuh"
#include "ops/gpu_matmul/slices.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    add(float* y, const float* parts, int slices, int64_t floats) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t at = 4 * (int64_t{blockIdx.x} * kThreads + threadIdx.x);
  if (at >= floats) return;
  float4 sum = __ldcg(reinterpret_cast<const float4*>(parts + at));
#pragma unroll 4
  for (int s = 1; s < slices; ++s) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(parts + s * floats + at));
    sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
  }
  *reinterpret_cast<float4*>(y + at) = sum;
}

}  // namespace

void add_slices(Ctx& cx, float* y, const float* parts, int slices, int64_t floats) {
  cuda::launch(cx.stream, add,
               {.grid = dim3(static_cast<unsigned>((floats / 4 + kThreads - 1) / kThreads)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               y, parts, slices, floats);
}

}  // namespace nibble::ops::gpu
