// Logits of several ranks, side by side: each lays its columns where the others may read them, or,
// where the GPUs do not reach each other's memory, among zeros: the sum over the ranks is all of
// them.
//   mine [R, n] f32, in    room [R, V] f32, out
// Bytes: 8 R n, or 4 R (n + V).
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/launch.cuh"
#include "ops/sample/whole_logits.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256, kEach = 4;
constexpr int64_t kMostBlocks = 1024;

__global__ void __launch_bounds__(kThreads) place(float* room, const float* mine, VocabCut cut) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t row = blockIdx.y, first = int64_t{blockIdx.x} * kThreads * kEach + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t column = first + i * kThreads;
    if (column < cut.size)
      room[row * cut.vocab + cut.begin + column] = mine[row * cut.size + column];
  }
}

__global__ void __launch_bounds__(kThreads)
    lay_among_zeros(float* room, const float* mine, VocabCut cut, int64_t n) {
  cuda::griddep_wait();
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    const int64_t row = i / cut.vocab, column = i % cut.vocab - cut.begin;
    const bool is_mine = column >= 0 && column < cut.size;
    room[i] = is_mine ? mine[row * cut.size + column] : 0.0f;
  }
}

}  // namespace

void place_columns(Ctx& cx, float* room, const Tensor& mine, const VocabCut& cut) {
  CHECK(mine.dim(1) == cut.size);
  if (mine.num_elements() == 0) return;
  const int64_t blocks = (cut.size + kThreads * kEach - 1) / (kThreads * kEach);
  cuda::launch(cx.stream, place,
               {.grid = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(mine.dim(0))),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               room, mine.as<float>(), cut);
}

void place_among_zeros(Ctx& cx, float* room, const Tensor& mine, const VocabCut& cut) {
  const int64_t n = mine.dim(0) * cut.vocab;
  const int64_t blocks = std::min(kMostBlocks, (n + kThreads - 1) / kThreads);
  cuda::launch(cx.stream, lay_among_zeros,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               room, mine.as<float>(), cut, n);
}

}  // namespace nibble::ops::gpu
