// output_gate: a thread an element. att [N] bf16, in and out; gate [N] f32. Bytes: 8 an element;
// 33 KB a token of Qwen3-Next-80B: one launch's latency up to some hundred tokens.
#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "ops/output_gate/output_gate.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    gate_elements(uint16_t* att, const float* gate, int64_t n) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  att[i] = cuda::bf16_bits(cuda::bf16_value(att[i]) / (1 + __expf(-__ldcg(gate + i))));
}

}  // namespace

void output_gate_any(Ctx& cx, const Tensor& att, const Tensor& gate) {
  const int64_t n = att.num_elements();
  if (n == 0) return;
  cuda::launch(cx.stream, gate_elements,
               {.grid = dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               att.as<uint16_t>(), gate.as<float>(), n);
}

}  // namespace nibble::ops::gpu
