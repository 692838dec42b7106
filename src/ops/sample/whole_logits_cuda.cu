// Logits of several ranks, side by side: each lays its columns among zeros, and the sum over the
// ranks is all of them. Twice the bytes of an exchange of columns, in return for no other exchange
// than that of a layer: of gpt-oss-120b 0.8 MB a token and rank.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/launch.cuh"
#include "ops/all_reduce/gpu_ranks.h"
#include "ops/sample/whole_logits.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1024;

__global__ void __launch_bounds__(kThreads)
    lay_among_zeros(float* whole, const float* mine, VocabCut cut, int64_t columns, int64_t n,
                    int64_t padded) {
  cuda::griddep_wait();
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < padded; i += stride) {
    const int64_t row = i / cut.vocab, column = i % cut.vocab - cut.begin;
    const bool is_mine = i < n && column >= 0 && column < columns;
    whole[i] = is_mine ? mine[row * columns + column] : 0.0f;
  }
}

}  // namespace

Tensor whole_logits(Ctx& cx, const Tensor& whole, const Tensor& mine, const VocabCut& cut) {
  const int64_t rows = mine.dim(0), n = rows * cut.vocab, padded = n + n % 2;
  CHECK(padded <= whole.num_elements());
  if (rows == 0) return make_tensor(whole.data, DType::kF32, {0, cut.vocab});
  const int64_t blocks = std::min(kMostBlocks, (padded + kThreads - 1) / kThreads);
  cuda::launch(cx.stream, lay_among_zeros,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               whole.as<float>(), mine.as<float>(), cut, mine.dim(1), n, padded);
  sum_by_size(cx, make_tensor(whole.data, DType::kF32, {1, padded}));
  cx.wrote({whole.data});
  return make_tensor(whole.data, DType::kF32, {rows, cut.vocab});
}

}  // namespace nibble::ops::gpu
