// add_norm (see add_norm.h): one block a token.
// Bytes: 14 H a token and 2 H of weights: at H = 2,880 40 KB a token, 9 ns of an H200's 4.5 TB/s;
// at T <= 128 one launch's latency.
#include "cuda/launch.cuh"
#include "ops/norm/add_norm.cuh"
#include "ops/norm/add_norm.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kWarps = 12;  // 360 groups of 8 columns at H = 2,880
constexpr int kThreads = kWarps * 32;
constexpr int kGroups = 3;  // of 8 columns, a thread: up to 9,216 columns

template <int kMine>  // groups a thread
__global__ void __launch_bounds__(kThreads) add_norm_rows(const __grid_constant__ AddNorm a) {
  __shared__ float squares[kWarps];
  cuda::griddep_launch_dependents();
  const auto hidden = static_cast<int>(a.hidden);
  const int64_t row = blockIdx.x;
  uint4 weight[kMine] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int column = 8 * (i * kThreads + threadIdx.x);
    if (column < hidden) weight[i] = cuda::load16(a.norm.weight + column);
  }
  const int64_t from = a.rows == nullptr ? row : a.rows[row];
  cuda::griddep_wait();
  float y[kMine][8] = {}, sum = 0;
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int column = 8 * (i * kThreads + threadIdx.x);
    if (column < hidden) add_8(y[i], a.x, a.d, from * hidden + column);
    sum = sum_of_squares(y[i], sum);
  }
  const float inv = inverse_rms<kWarps>(sum, squares, hidden, a.norm.eps);
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int column = 8 * (i * kThreads + threadIdx.x);
    if (column >= hidden) continue;
    if (a.rows == nullptr) store_8(a.y, row * hidden + column, y[i]);
    *reinterpret_cast<uint4*>(a.h + row * hidden + column) = norm_8(y[i], inv, weight[i]);
  }
}

}  // namespace

void add_norm(Ctx& cx, const AddNorm& a) {
  CHECK(a.hidden % 8 == 0 && a.hidden <= 8 * kThreads * kGroups);
  const auto kernel = a.hidden <= 8 * kThreads ? add_norm_rows<1> : add_norm_rows<kGroups>;
  cuda::launch(cx.stream, kernel, {.grid = dim3(a.tokens), .block = dim3(kThreads)}, a);
}

}  // namespace nibble::ops::gpu
