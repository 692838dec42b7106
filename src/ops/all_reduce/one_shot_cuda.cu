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

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 64;

__device__ void send(PeerMemory::Packet* to, float2 values, uint32_t sum) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "r"(__float_as_uint(values.x)), "r"(sum), "r"(__float_as_uint(values.y)), "r"(sum)
               : "memory");
}

__device__ uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// NaN where it does not come. Who has waited in vain spares all sums behind it the same.
__device__ float2 receive(const PeerMemory::Packet* from, uint32_t sum, const PeerMemory& m) {
  uint64_t began = 0;
  for (uint32_t polls = 1;; ++polls) {
    uint32_t first, first_sum, second, second_sum;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(first), "=r"(first_sum), "=r"(second), "=r"(second_sum)
                 : "l"(from)
                 : "memory");
    if (first_sum == sum && second_sum == sum)
      return {__uint_as_float(first), __uint_as_float(second)};
    if (polls % 1024 != 0) continue;
    const uint64_t now = now_ns();
    if (began == 0) began = now;
    if (now - began > m.patience_ns) *static_cast<volatile uint32_t*>(m.abort) = 1;
    if (*static_cast<const volatile uint32_t*>(m.abort) != 0) break;
  }
  return {__uint_as_float(0x7fc00000), __uint_as_float(0x7fc00000)};
}

__global__ void __launch_bounds__(kThreads, 4)
    sum_over_ranks(const __grid_constant__ PeerMemory m, float2* values, int pairs) {
  cuda::griddep_wait();
  const uint32_t sum = *static_cast<volatile uint32_t*>(m.counts) + 1;
  const int64_t lane = m.capacity / 2, slot = sum % 2 * m.size * lane;
  const int first = blockIdx.x * kThreads + threadIdx.x, stride = gridDim.x * kThreads;
  for (int i = first; i < pairs; i += stride)
    for (int r = 1; r < m.size; ++r) {
      const int peer = (m.rank + r) % m.size;
      send(m.packets[peer] + slot + m.rank * lane + i, values[i], sum);
    }
  // What comes next begins beside the wait for the others.
  cuda::griddep_launch_dependents();
  for (int i = first; i < pairs; i += stride) {
    float2 all = {0, 0};
    for (int r = 0; r < m.size; ++r) {
      const float2 part =
          r == m.rank ? values[i] : receive(m.packets[m.rank] + slot + r * lane + i, sum, m);
      all = r == 0 ? part : float2{all.x + part.x, all.y + part.y};
    }
    values[i] = all;
  }
  // Who is the last has seen all others read the number.
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&m.counts[1], 1) != gridDim.x - 1) return;
  m.counts[1] = 0;
  m.counts[0] = sum;
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

void sum_nccl(Ctx& cx, const Tensor& t) {
  ranks_of(cx).nccl().all_reduce(t.as<float>(), t.num_elements(), cx.stream);
}

void sum_by_size(Ctx& cx, const Tensor& t) {
  const GpuRanks& ranks = ranks_of(cx);
  const bool is_small = is_for_one_shot(t.num_elements(), ranks.size());
  const bool is_one_shot = ranks.has_peer_memory() && (is_small || !ranks.has_nccl());
  (is_one_shot ? sum_one_shot : sum_nccl)(cx, t);
}

}  // namespace nibble::ops::gpu
