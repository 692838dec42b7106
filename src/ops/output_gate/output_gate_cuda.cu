// output_gate: a thread four elements. att [N] bf16, in and out; gate [N] f32. Bytes: 8 an element;
// 33 KB a token of Qwen3-Next-80B: one launch's latency up to some hundred tokens.
#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "ops/output_gate/output_gate.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256, kElements = 4;

// Its division to two ulps: the exact one takes tens of instructions.
__device__ __forceinline__ float gated(float x, float gate) {
  return __fdividef(x, 1 + __expf(-gate));
}

__global__ void __launch_bounds__(kThreads)
    gate_elements(uint16_t* att, const float* gate, int64_t n) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElements;
  if (i + kElements <= n) {
    auto* const at = reinterpret_cast<uint2*>(att + i);
    const float4 by = __ldcg(reinterpret_cast<const float4*>(gate + i));
    const uint2 x = *at;
    *at = {cuda::pack_bf16(gated(cuda::bf16_lo(x.x), by.x), gated(cuda::bf16_hi(x.x), by.y)),
           cuda::pack_bf16(gated(cuda::bf16_lo(x.y), by.z), gated(cuda::bf16_hi(x.y), by.w))};
    return;
  }
  for (int64_t j = i; j < n; ++j)
    att[j] = cuda::bf16_bits(gated(cuda::bf16_value(att[j]), __ldcg(gate + j)));
}

}  // namespace

void output_gate_any(Ctx& cx, const Tensor& att, const Tensor& gate) {
  const int64_t n = att.num_elements();
  if (n == 0) return;
  constexpr int64_t kBlock = kThreads * kElements;
  cuda::launch(cx.stream, gate_elements,
               {.grid = dim3(static_cast<unsigned>((n + kBlock - 1) / kBlock)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               att.as<uint16_t>(), gate.as<float>(), n);
}

}  // namespace nibble::ops::gpu
