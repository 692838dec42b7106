// How fast this machine reads memory: the bound of every decode step, measured the way kernels
// read.
#pragma once

#include <cstdint>

#include "cpu/thread_pool.h"

namespace nibble::cpu {

struct ReadBandwidth {
  double median = 0;  // bytes per second
  double best = 0;
};

// Reads `bytes` of fresh memory with every thread of the pool, each its own part, front to back,
// `repeats` times. `bytes` should be many times the last-level cache. Throws Error(kMemory) where
// there is no room.
ReadBandwidth measure_read_bandwidth(ThreadPool& pool, int64_t bytes, int repeats);

}  // namespace nibble::cpu
