// What a GPU does that no data sheet says: clocks, rates and bits, for `nibble bench probe`. Each
// function runs its own kernels for some milliseconds. Errors throw as in cuda/memory.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/caps.h"

namespace nibble::cuda {

// A matrix instruction issued by every warp of every SM, with eight sums each in turn.
struct MmaRate {
  std::string name;            // "hmma_bf16", "qmma_e4m3", "qmma_sf_e2m1_e4m3", "omma_sf_nvfp4"
  bool exists = false;         // on this GPU; else all below are 0
  double flops = 0;            // a second, all SMs
  double flops_per_clock = 0;  // of one SM
  double clock_hz = 0;         // while it ran
};
std::vector<MmaRate> measure_mma_rates(const Caps& caps);

// Of the SMs: in the first milliseconds of matrix products, and after `seconds` of nothing else.
struct Clocks {
  double first_hz = 0, steady_hz = 0;
};
Clocks measure_clocks(const Caps& caps, double seconds);

// Bytes a second that all SMs read of `bytes`, again and again, past their L1.
double measure_l2_read(const Caps& caps, int64_t bytes);

// A block-scaled instruction of random operands against mma_sm12x_model.h. Where the GPU has none,
// its exact emulation.
struct BitModelCheck {
  std::string name;  // as MmaRate's
  bool is_native = false;
  int64_t sums = 0, differ = 0;
  double worst = 0;  // of those that differ, relative
};
std::vector<BitModelCheck> check_bit_models();

// Whether two blocks of a cluster, once launched, read each other's shared memory.
bool run_cluster();

// Microseconds from one kernel to the next in a graph of many that do nothing, and where each may
// start before the one in front has ended.
struct LaunchGaps {
  double plain_us = 0, dependent_us = 0;
};
LaunchGaps measure_launch_gaps();

}  // namespace nibble::cuda
