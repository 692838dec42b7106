// A sum over ranks in one way: each sends its values to all others, as packets that say of which
// sum they are, and adds up what arrives, in order of ranks.
//   t [T, H] f32, in and out; packets of every rank in memory that all write (over NVLink)
// Bytes at R ranks: 16 sent to each other rank and 16 read from each for two floats: twice what a
// sum needs, in return for one way of the link and no barrier: gpt-oss-120b's token, 2,880 floats
// at two ranks, is 23 KB each way. The idea: two floats and their numbers are one 16-byte store,
// and arrive together in halves of 8. Lost: a flag behind the data, which waits for the data to be
// acknowledged first.
#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/launch.cuh"
#include "ops/all_reduce/gpu_ranks.h"
#include "ops/all_reduce/one_shot.h"
#include "ops/all_reduce/peer_exchange.cuh"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 64;

__global__ void __launch_bounds__(kThreads, 4)
    sum_over_ranks(const __grid_constant__ PeerMemory m, float2* values, int pairs) {
  cuda::griddep_wait();
  const uint32_t number = exchange_number(m);
  const int first = blockIdx.x * kThreads + threadIdx.x, stride = gridDim.x * kThreads;
  for (int i = first; i < pairs; i += stride)
    for (int r = 1; r < m.size; ++r) {
      const int peer = (m.rank + r) % m.size;
      send(packets_of(m, peer, m.rank, number) + i,
           {__float_as_uint(values[i].x), __float_as_uint(values[i].y)}, number);
    }
  // What comes next begins beside the wait for the others.
  cuda::griddep_launch_dependents();
  for (int i = first; i < pairs; i += stride) {
    float2 all = {0, 0};
    for (int r = 0; r < m.size; ++r) {
      uint2 part = {__float_as_uint(values[i].x), __float_as_uint(values[i].y)};
      if (r != m.rank && !receive(packets_of(m, m.rank, r, number) + i, number, m, part))
        part = {0x7fc00000, 0x7fc00000};  // NaN
      const float2 p = {__uint_as_float(part.x), __uint_as_float(part.y)};
      all = r == 0 ? p : float2{all.x + p.x, all.y + p.y};
    }
    values[i] = all;
  }
  end_exchange(m, number);
}

}  // namespace

void all_reduce_one_shot(Ctx& cx, const PeerMemory& peers, const Tensor& t) {
  const int64_t n = t.num_elements();
  CHECK(n % 2 == 0 && n <= peers.capacity && peers.size <= PeerMemory::kMostRanks);
  const auto pairs = static_cast<int>(n / 2);
  const int blocks = std::clamp((pairs + kThreads - 1) / kThreads, 1, kMostBlocks);
  cuda::launch(cx.stream, sum_over_ranks,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(kThreads),
                .release = cuda::Release::kAfterWait},
               peers, reinterpret_cast<float2*>(t.as<float>()), pairs);
}

void sum_one_shot(Ctx& cx, const Tensor& t) {
  const PeerMemory& peers = ranks_of(cx).peers();
  const int64_t n = t.num_elements();
  for (int64_t at = 0; at < n; at += peers.capacity)
    all_reduce_one_shot(
        cx, peers,
        make_tensor(t.as<float>() + at, DType::kF32, {1, std::min(peers.capacity, n - at)}));
}

void sum_blocks(Ctx& cx, const Tensor& t) { all_reduce_blocks(cx, ranks_of(cx).peers(), t); }

void sum_nccl(Ctx& cx, const Tensor& t) {
  ranks_of(cx).nccl().all_reduce(t.as<float>(), t.num_elements(), cx.stream);
}

}  // namespace nibble::ops::gpu
