// The second half of moe_down behind products that leave a bf16 row for every slot: each token's
// are weighed and added in order of choice. (A slot's row is rounded once more than the twin's:
// 2^-9 of it; float32 rows would be twice the bytes between the two.) Bytes at T tokens: 2 K H + 4
// H each: 35 KB at gpt-oss-120b's shape.
#include <cuda_bf16.h>

#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "ops/gpu_matmul/expert_limits.h"
#include "ops/moe_down/add_row.cuh"
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
      add_row(sum, weight, row);
    }
    to[0] = {sum[0], sum[1], sum[2], sum[3]};
    to[1] = {sum[4], sum[5], sum[6], sum[7]};
  }
}

constexpr int kFewThreads = 128;

// The same by threads of eight columns. is_chosen_before: of slot and p. kMost: choices. All blocks
// of 256 tokens run at once.
template <int kMost>
__global__ void __launch_bounds__(kFewThreads, 4)
    add_few(float* d, const uint16_t* y, const float* p, const int32_t* slot, int top_k, int hidden,
            bool adds, bool is_chosen_before) {
  cuda::griddep_launch_dependents();
  if (!is_chosen_before) cuda::griddep_wait();
  const int column = 8 * (blockIdx.x * kFewThreads + threadIdx.x), t = blockIdx.y;
  uint32_t from[kMost];
  float weight[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int choice = t * top_k + min(i, top_k - 1);
    from[i] = static_cast<uint32_t>(__ldcg(slot + choice)) * hidden + column;
    weight[i] = __ldcg(p + choice);
  }
  cuda::griddep_wait();
  if (column >= hidden) return;
  uint4 rows[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i)
    if (i < top_k) rows[i] = __ldcg(reinterpret_cast<const uint4*>(y + from[i]));
  auto* const to = reinterpret_cast<float4*>(d + int64_t{t} * hidden + column);
  float4 a{}, b{};
  if (adds) a = __ldcg(to), b = __ldcg(to + 1);
  float sum[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < kMost; ++i)
    if (i < top_k) add_row(sum, weight[i], rows[i]);
  to[0] = {sum[0], sum[1], sum[2], sum[3]};
  to[1] = {sum[4], sum[5], sum[6], sum[7]};
}

}  // namespace

void combine_few(Ctx& cx, const Tensor& d, const uint16_t* y, const Routing& routing) {
  const auto hidden = static_cast<int>(d.dim(1));
  CHECK(int64_t{routing.num_tokens} * routing.top_k * hidden <= UINT32_MAX);  // offsets in y
  CHECK(routing.top_k <= kMaxChoices);
  cuda::launch(cx.stream, routing.top_k <= 8 ? add_few<8> : add_few<kMaxChoices>,
               {.grid = dim3((hidden / 8 + kFewThreads - 1) / kFewThreads, routing.num_tokens),
                .block = dim3(kFewThreads)},
               d.as<float>(), y, routing.p, routing.slot, routing.top_k, hidden, routing.adds,
               cx.stream.order.is_complete(routing.ids));
}

void combine(Ctx& cx, const Tensor& d, const uint16_t* y, const Routing& routing) {
  cuda::launch(cx.stream, add_choices,
               {.grid = dim3(static_cast<unsigned>(routing.num_tokens)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               d.as<float>(), y, routing.p, routing.slot, routing.top_k, static_cast<int>(d.dim(1)),
               routing.adds);
}

}  // namespace nibble::ops::gpu
