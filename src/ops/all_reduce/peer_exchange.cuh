// Packets, blocks and rows between ranks, and waits for what another one sends:
// ops/all_reduce/one_shot.h.
#pragma once

#include <cuda_runtime.h>

#include "ops/all_reduce/one_shot.h"

namespace nibble::ops::gpu {

// Of who waits for another rank. Who has waited in vain spares all exchanges behind it the same.
class Patience {
 public:
  __device__ explicit Patience(const PeerMemory& m) : m_(m) {}
  // To be asked at each look.
  __device__ bool is_over() {
    if (++looks_ % 1024 != 0) return false;
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (began_ == 0) began_ = now;
    if (now - began_ > m_.patience_ns) *static_cast<volatile uint32_t*>(m_.abort) = 1;
    return *static_cast<const volatile uint32_t*>(m_.abort) != 0;
  }

 private:
  const PeerMemory& m_;
  uint32_t looks_ = 0;
  uint64_t began_ = 0;
};

// The exchange of packets that this kernel makes: read by all of its thread blocks before the last
// of them ends it.
__device__ inline uint32_t exchange_number(const PeerMemory& m) {
  return *static_cast<volatile uint32_t*>(m.counts) + 1;
}

// Of the ranks that send to `of`, which `from` is: nobody sends to itself.
__host__ __device__ inline int sender_of(int of, int from) { return from < of ? from : from - 1; }

// Where rank `of` finds what `from` sends in it.
__device__ inline PeerMemory::Packet* packets_of(const PeerMemory& m, int of, int from,
                                                 uint32_t number) {
  const int64_t lane = m.capacity / 2;
  return m.packets[of] + (number % 2 * (m.size - 1) + sender_of(of, from)) * lane;
}

__device__ inline void send(PeerMemory::Packet* to, uint2 values, uint32_t number) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(values.x),
               "r"(number), "r"(values.y), "r"(number)
               : "memory");
}

// False where it does not come.
__device__ inline bool receive(const PeerMemory::Packet* from, uint32_t number, const PeerMemory& m,
                               uint2& values) {
  Patience patience(m);
  uint32_t first_number, second_number;
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values.x), "=r"(first_number), "=r"(values.y), "=r"(second_number)
                 : "l"(from)
                 : "memory");
    if (first_number == number && second_number == number) return true;
  } while (!patience.is_over());
  return false;
}

// By all threads of a thread block, whose last has seen all others read the number.
__device__ inline void end_exchange(const PeerMemory& m, uint32_t number) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&m.counts[1], 1) != gridDim.x - 1) return;
  m.counts[1] = 0;
  m.counts[0] = number;
}

// Where this thread block of rank `of` finds what those of its index on rank `from` send by
// `number`.
__device__ inline std::byte* block_of(const PeerMemory& m, int of, int from, uint32_t number) {
  const int64_t at =
      (int64_t{number % 2} * (m.size - 1) + sender_of(of, from)) * PeerMemory::kBlocks + blockIdx.x;
  return m.blocks[of] + at * PeerMemory::kBlockFloats * int64_t{sizeof(float)};
}

__device__ inline void say(uint32_t* arrived, uint32_t number) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(arrived), "r"(number) : "memory");
}
__device__ inline uint32_t last_said(const uint32_t* word) {
  uint32_t last;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(last) : "l"(word) : "memory");
  return last;
}
// False where it does not come. Who says it may be one ahead, of what lies in the other slot.
__device__ inline bool wait_for(const uint32_t* word, uint32_t number, const PeerMemory& m) {
  Patience patience(m);
  while (last_said(word) - number > 1)
    if (patience.is_over()) return false;
  return true;
}

// By all threads, which have written their part of the block of `number` for each other rank: says
// so, and waits for theirs. is_lost, shared, becomes true where one does not come.
__device__ inline void exchange_blocks(const PeerMemory& m, uint32_t number, bool& is_lost) {
  __syncthreads();  // one thread's release is of what all have written: it follows them
  const int thread = threadIdx.x, peer = thread < m.rank ? thread : thread + 1;
  const auto arrived = [&](int of, int from) {
    return m.arrived[of] + sender_of(of, from) * PeerMemory::kBlocks + blockIdx.x;
  };
  if (thread < m.size - 1) {
    say(arrived(peer, m.rank), number);
    if (!wait_for(arrived(m.rank, peer), number, m)) is_lost = true;
  }
  __syncthreads();
}

// Where rank `of` finds the rows that `from` sends by `number`, and that they have come.
__host__ __device__ inline std::byte* rows_of(const PeerMemory& m, int of, int from,
                                              uint32_t number) {
  return m.rows[of] + (int64_t{number % 2} * (m.size - 1) + sender_of(of, from)) * m.row_bytes;
}
__device__ inline uint32_t* sent_to(const PeerMemory& m, int of, int from, int group) {
  return m.sent[of] + sender_of(of, from) * PeerMemory::kMostGroups + group;
}
// Of this rank's own, which the thread blocks that send leave to those that add up.
__device__ inline uint32_t* sent_here(const PeerMemory& m, int group) {
  return m.sent[m.rank] + (m.size - 1) * PeerMemory::kMostGroups + group;
}
// The exchange of rows that comes next: behind the kernels in front.
__device__ inline uint32_t next_rows(const uint32_t* counts) {
  return __ldcg(counts + PeerMemory::kRowCounts) + 1;
}
// By all threads of a thread block that is through with an exchange of rows.
__device__ inline void end_rows(const PeerMemory& m, uint32_t number) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  uint32_t* const counts = m.counts + PeerMemory::kRowCounts;
  if (atomicAdd(&counts[1], 1) != gridDim.x - 1) return;
  counts[1] = 0;
  counts[0] = number;
}

}  // namespace nibble::ops::gpu
