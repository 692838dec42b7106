// Logits of several ranks, side by side: each writes its columns into the memory of all, and then
// they meet; or, where the GPUs do not reach each other's, lays them among zeros, and the sum over
// the ranks is all of them.
//   mine [R, n] f32, in    rooms [R, V] f32 of each rank, out
// Bytes: 4 R n to each other rank: of gpt-oss-120b at two ranks 0.4 MB a token.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/launch.cuh"
#include "ops/all_reduce/gpu_ranks.h"
#include "ops/all_reduce/peer_exchange.cuh"
#include "ops/sample/whole_logits.h"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256, kEach = 4;
constexpr int64_t kMostBlocks = 1024;

__global__ void __launch_bounds__(kThreads)
    place(const __grid_constant__ LogitRooms rooms, const float* mine, VocabCut cut) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t row = blockIdx.y, first = int64_t{blockIdx.x} * kThreads * kEach + threadIdx.x;
  float values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t column = first + i * kThreads;
    values[i] = column < cut.size ? mine[row * cut.size + column] : 0.0f;
  }
  for (int r = 0; r < rooms.n; ++r) {
    float* const to = rooms.of[r] + row * cut.vocab + cut.begin;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (first + i * kThreads < cut.size) to[first + i * kThreads] = values[i];
  }
}

__global__ void __launch_bounds__(kThreads)
    lay_among_zeros(float* room, const float* mine, VocabCut cut, int64_t n, int64_t padded) {
  cuda::griddep_wait();
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < padded; i += stride) {
    const int64_t row = i / cut.vocab, column = i % cut.vocab - cut.begin;
    const bool is_mine = i < n && column >= 0 && column < cut.size;
    room[i] = is_mine ? mine[row * cut.size + column] : 0.0f;
  }
}

// An exchange of nothing, behind all that the kernels before have written.
__global__ void __launch_bounds__(32) meet_ranks(const __grid_constant__ PeerMemory m) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const uint32_t number = exchange_number(m);
  const int peer = threadIdx.x < m.rank ? threadIdx.x : threadIdx.x + 1;
  __threadfence_system();
  if (peer < m.size) {
    uint2 nothing{};
    send(packets_of(m, peer, m.rank, number), nothing, number);
    receive(packets_of(m, m.rank, peer, number), number, m, nothing);
  }
  __threadfence_system();
  end_exchange(m, number);
}

}  // namespace

void place_columns(Ctx& cx, const LogitRooms& rooms, const Tensor& mine, const VocabCut& cut) {
  CHECK(mine.dim(1) == cut.size);
  if (mine.num_elements() == 0) return;
  const int64_t blocks = (cut.size + kThreads * kEach - 1) / (kThreads * kEach);
  cuda::launch(cx.stream, place,
               {.grid = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(mine.dim(0))),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               rooms, mine.as<float>(), cut);
}

void place_among_zeros(Ctx& cx, float* room, const Tensor& mine, const VocabCut& cut) {
  const int64_t n = mine.dim(0) * cut.vocab, padded = (n + 3) / 4 * 4;
  const int64_t blocks = std::min(kMostBlocks, (padded + kThreads - 1) / kThreads);
  cuda::launch(cx.stream, lay_among_zeros,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               room, mine.as<float>(), cut, n, padded);
}

void meet(Ctx& cx) {
  cuda::launch(cx.stream, meet_ranks,
               {.grid = dim3(1), .block = dim3(32), .release = cuda::Release::kAfterWait},
               ranks_of(cx).peers());
}

}  // namespace nibble::ops::gpu
