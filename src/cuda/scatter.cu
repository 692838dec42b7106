#include "cuda/launch.cuh"
#include "cuda/scatter.h"

namespace nibble::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void scatter_kernel(int32_t* table, const Update* updates, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) table[updates[i].index] = updates[i].value;
}

}  // namespace

void scatter(int32_t* table, const Update* updates, int64_t n, StreamHandle stream) {
  if (n == 0) return;
  launch(stream, scatter_kernel,
         {.grid = static_cast<unsigned>((n + kThreads - 1) / kThreads),
          .block = kThreads,
          .pdl = false},
         table, updates, n);
}

}  // namespace nibble::cuda
