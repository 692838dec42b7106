// one_shot: sums over GPUs of one host that write into each other's memory.
#pragma once

#include <cstdint>

#include "ops/ctx.h"

namespace nibble::ops::gpu {

// What one rank's kernels know of all. A packet is two floats, each beside the number of the sum
// that it belongs to: who finds the number has the float, and nothing else need be waited for. Sums
// take turns between two slots: a rank that sends sum n has all of sum n - 1, whose senders had
// read sum n - 2.
struct PeerMemory {
  static constexpr int kMostRanks = 8;
  struct alignas(16) Packet {
    float first;
    uint32_t first_sum;
    float second;
    uint32_t second_sum;
  };
  int rank = 0, size = 1;
  int64_t capacity = 0;  // floats of the largest sum; even
  // A rank may take long over its first steps, whose graphs it records; one whose process ends or
  // stops is found out by others' means, and sooner.
  uint64_t patience_ns = 30'000'000'000;
  Packet* packets[kMostRanks]{};  // of each rank, in its GPU: [2 slots][size senders][capacity / 2]
  uint32_t* counts = nullptr;     // [2] this rank's: sums so far, and blocks that are through
  uint32_t* abort = nullptr;      // of the host: other than 0: give up; set where nobody came

  // Of one rank's packets; zeros to begin with, as its counts.
  static int64_t packet_bytes(int64_t size, int64_t capacity) {
    return 2 * size * (capacity / 2) * static_cast<int64_t>(sizeof(Packet));
  }
};

// Whether a sum of so many floats is quicker in one way, at twice the bytes to each rank, than in
// the two of a ring. Not measured between GPUs yet: by the link's 450 GB/s and some 15 us of NCCL.
constexpr bool is_for_one_shot(int64_t floats, int64_t ranks) {
  constexpr int64_t kMost = int64_t{1} << 20;
  return floats * (ranks - 1) <= kMost;
}

// t [T, H] f32, H even, at most `capacity` floats: sums in order of ranks, the same bits on each.
// Ends with NaN where a rank does not come within patience_ns, or `abort` says so.
void all_reduce_one_shot(Ctx& cx, const PeerMemory& peers, const Tensor& t);

}  // namespace nibble::ops::gpu
