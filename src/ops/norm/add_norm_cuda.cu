// add_norm (see add_norm.h): one block a token.
// Bytes: 14 H a token and 2 H of weights: at H = 2,880 40 KB a token, 9 ns of an H200's 4.5 TB/s;
// at T <= 128 one launch's latency.
#include <utility>

#include "cuda/launch.cuh"
#include "ops/all_reduce/gpu_ranks.h"
#include "ops/norm/add_norm_over_ranks.h"
#include "ops/norm/add_norm_row.cuh"

namespace nibble::ops::gpu {
namespace {

template <int kMine, bool kE4m3>  // groups a thread
__global__ void __launch_bounds__(kNormThreads)
    add_norm_rows(const __grid_constant__ AddNorm a, const GateLogits gated) {
  cuda::griddep_launch_dependents();
  const int64_t row = blockIdx.x;
  NormRow<kMine, kE4m3> norm(a, gated);
  const int64_t from = a.rows == nullptr ? row : a.rows[row];
  cuda::griddep_wait();
  float y[kMine][8] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i)
    if (norm.has(i)) add_8(y[i], a.x, a.d, from * a.hidden + norm.column(i));
  norm.store(row, y);
}

// Any H: a thread has every kNormThreads-th column, and reads it again for h.
__global__ void __launch_bounds__(kNormThreads)
    add_norm_columns(const __grid_constant__ AddNorm a) {
  __shared__ float squares[kNormWarps];
  const auto hidden = static_cast<int>(a.hidden);
  const int64_t row = blockIdx.x;
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t from = (a.rows == nullptr ? row : a.rows[row]) * hidden;
  const auto sum_at = [&](int column) {
    return __ldcg(a.x + from + column) + __ldcg(a.d + from + column);
  };
  float sum = 0;
#pragma unroll 4
  for (int column = threadIdx.x; column < hidden; column += kNormThreads) {
    const float y = sum_at(column);
    sum = fmaf(y, y, sum);
    if (a.rows == nullptr) a.y[row * hidden + column] = y;
  }
  const float inv = inverse_rms<kNormWarps>(sum, squares, hidden, a.norm.eps);
#pragma unroll 4
  for (int column = threadIdx.x; column < hidden; column += kNormThreads)
    a.h[row * hidden + column] = cuda::bf16_bits(
        sum_at(column) * inv * (a.norm.offset + cuda::bf16_value(a.norm.weight[column])));
}

}  // namespace

void add_norm_any(Ctx& cx, const AddNorm& a) {
  CHECK(a.e4m3.codes == nullptr);
  cuda::launch(cx.stream, add_norm_columns,
               {.grid = dim3(static_cast<unsigned>(a.tokens)), .block = dim3(kNormThreads)}, a);
}

void add_norm(Ctx& cx, const AddNorm& a) { add_norm(cx, a, {}); }

void add_norm(Ctx& cx, const AddNorm& a, const GateLogits& gate) {
  CHECK(a.hidden % 8 == 0 && a.hidden <= 8 * kNormThreads * kNormGroups);
  CHECK(a.e4m3.codes == nullptr || a.hidden % 32 == 0);
  if (const LeftSum left = std::exchange(cx.left_sum, {}); left.site != nullptr) {
    CHECK(left.t.data == a.d && left.t.dim(0) == a.tokens);
    GpuRanks& ranks = ranks_of(cx);
    if (left.t.dtype == DType::kBF16) return add_norm_of_sent(cx, ranks.peers(), a, gate);
    const LeftChoices choices = ranks.take_choices();
    if (choices.rows != nullptr) return add_norm_of_choices(cx, ranks.peers(), a, gate, choices);
    return add_norm_over_ranks(cx, ranks.peers(), a, gate);
  }
  const bool is_narrow = a.hidden <= 8 * kNormThreads, e4m3 = a.e4m3.codes != nullptr;
  const auto kernel =
      is_narrow ? (e4m3 ? add_norm_rows<1, true> : add_norm_rows<1, false>)
                : (e4m3 ? add_norm_rows<kNormGroups, true> : add_norm_rows<kNormGroups, false>);
  cuda::launch(
      cx.stream, kernel,
      {.grid = dim3(a.tokens), .block = dim3(kNormThreads), .reads_inputs = a.rows != nullptr}, a,
      gate);
}

}  // namespace nibble::ops::gpu
