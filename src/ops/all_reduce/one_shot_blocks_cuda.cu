// A sum over ranks in one way, of many values: each sends its own to all others in blocks, a number
// behind each, and adds up what arrives, in order of ranks.
//   t [T, H] f32, in and out; blocks of every rank in memory that all write (over NVLink)
// Bytes at R ranks: 2 a value sent to each other rank and read from each, or 4 under --exact: of a
// prompt's 8,192 tokens of gpt-oss-120b at two ranks 47 MB each way. Values stay in registers
// between the sending and the sum. A number says that all of its block has come: it is
// released behind a barrier of the thread block. Lost: a fence by every thread (185 us for 155 of
// 47 MB each way, whose copy alone takes 133 by kernels and 125 by the copy engine; H200, NVLink 4,
// 2026-11-28), and the next block on its way before the sum of one (150).
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "cuda/bf16.cuh"
#include "cuda/launch.cuh"
#include "ops/all_reduce/one_shot.h"
#include "ops/all_reduce/peer_exchange.cuh"

namespace nibble::ops::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int kWidth = 4;  // floats of a thread that lie together
constexpr int kMostEach = PeerMemory::kBlockFloats / (kThreads * kWidth);

// As values travel.
template <typename T>
using Sent = std::conditional_t<std::is_same_v<T, float>, uint4, uint2>;

__device__ uint2 packed(float4 v, uint2) {
  return {cuda::pack_bf16(v.x, v.y), cuda::pack_bf16(v.z, v.w)};
}
__device__ uint4 packed(float4 v, uint4) {
  return {__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w)};
}
__device__ float4 unpacked(uint2 p) {
  return {cuda::bf16_lo(p.x), cuda::bf16_hi(p.x), cuda::bf16_lo(p.y), cuda::bf16_hi(p.y)};
}
__device__ float4 unpacked(uint4 p) {
  return {__uint_as_float(p.x), __uint_as_float(p.y), __uint_as_float(p.z), __uint_as_float(p.w)};
}

// Blocks of kEach groups of 4 floats a thread; fours: of all values.
template <typename T, int kEach>
__global__ void __launch_bounds__(kThreads, 2)
    sum_blocks_over_ranks(const __grid_constant__ PeerMemory m, float4* values, int fours) {
  __shared__ bool is_lost;
  constexpr int kBlock = kThreads * kEach;
  const int b = blockIdx.x, thread = threadIdx.x;
  const auto room = [&](int of, int from, uint32_t number) {
    return reinterpret_cast<Sent<T>*>(block_of(m, of, from, number));
  };
  if (thread == 0) is_lost = false;
  cuda::griddep_wait();
  uint32_t number = m.counts[2 + b];
  bool has_released = false;
  for (int begin = b * kBlock; begin < fours; begin += gridDim.x * kBlock) {
    ++number;
    Sent<T> mine[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = begin + i * kThreads + thread;
      mine[i] = packed(at < fours ? values[at] : float4{0, 0, 0, 0}, Sent<T>{});
    }
    for (int r = 1; r < m.size; ++r) {
      Sent<T>* const to = room((m.rank + r) % m.size, m.rank, number);
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (begin + i * kThreads + thread < fours) to[i * kThreads + thread] = mine[i];
    }
    // What comes next begins beside the wait for the others.
    if (!has_released) cuda::griddep_launch_dependents();
    has_released = true;
    exchange_blocks(m, number, is_lost);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = begin + i * kThreads + thread;
      if (at >= fours) continue;
      float4 all;
      for (int r = 0; r < m.size; ++r) {
        const float4 p = unpacked(
            r == m.rank ? mine[i] : __ldcg(room(m.rank, r, number) + i * kThreads + thread));
        all = r == 0 ? p : float4{all.x + p.x, all.y + p.y, all.z + p.z, all.w + p.w};
      }
      const float nan = __uint_as_float(0x7fc00000);
      values[at] = is_lost ? float4{nan, nan, nan, nan} : all;
    }
  }
  if (thread == 0) m.counts[2 + b] = number;
}

template <typename T>
void launch_blocks(Ctx& cx, const PeerMemory& peers, float4* values, int fours) {
  const auto run = [&](auto each) {
    constexpr int kEach = decltype(each)::value;
    const int blocks = (fours + kThreads * kEach - 1) / (kThreads * kEach);
    cuda::launch(cx.stream, sum_blocks_over_ranks<T, kEach>,
                 {.grid = dim3(static_cast<unsigned>(std::min(blocks, peers.num_blocks))),
                  .block = dim3(kThreads),
                  .release = cuda::Release::kAfterWait},
                 peers, values, fours);
  };
  // The smallest blocks of which each thread block has one, so that many send at a time.
  const int all = peers.num_blocks * kThreads;
  if (fours <= all)
    run(std::integral_constant<int, 1>());
  else if (fours <= 2 * all)
    run(std::integral_constant<int, 2>());
  else
    run(std::integral_constant<int, kMostEach>());
}

}  // namespace

void all_reduce_blocks(Ctx& cx, const PeerMemory& peers, const Tensor& t) {
  const int64_t n = t.num_elements();
  CHECK(n % kWidth == 0 && n / kWidth < INT32_MAX && peers.size <= PeerMemory::kMostRanks);
  auto* const values = reinterpret_cast<float4*>(t.as<float>());
  const auto fours = static_cast<int>(n / kWidth);
  if (cx.kernels.exact)
    launch_blocks<float>(cx, peers, values, fours);
  else
    launch_blocks<uint16_t>(cx, peers, values, fours);
}

}  // namespace nibble::ops::gpu
