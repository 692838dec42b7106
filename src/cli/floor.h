// The least time that work takes on a device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/caps.h"

namespace nibble::cli {

struct DeviceRates {
  double bandwidth = 0;       // bytes a second that plain reads reach
  double bf16 = 0, e4m3 = 0;  // FLOP/s that large products reach; 0: not known
};

// Products as measured on an H200; of other devices bytes alone are known.
inline DeviceRates device_rates(const cuda::Caps& gpu, double bandwidth) {
  if (gpu.sm != 90) return {.bandwidth = bandwidth};
  return {.bandwidth = bandwidth, .bf16 = 790e12, .e4m3 = 1450e12};
}

// Of one op: the larger of what its bytes and its products take.
inline double floor_seconds(int64_t bytes, int64_t flops, bool is_e4m3, const DeviceRates& rates) {
  const double moved = static_cast<double>(bytes) / rates.bandwidth;
  const double rate = is_e4m3 ? rates.e4m3 : rates.bf16;
  return rate > 0 ? std::max(moved, static_cast<double>(flops) / rate) : moved;
}

}  // namespace nibble::cli
