// The least time that work takes on a device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "cli/projection.h"
#include "cuda/caps.h"

namespace nibble::cli {

struct DeviceRates {
  double bandwidth = 0;  // bytes a second that plain reads reach
  // FLOP/s that large products reach, by the format of their inputs; 0: not known
  double bf16 = 0, e4m3 = 0, e2m1 = 0;
};

// Products as measured on an H200; of a GB10 what its family's tensor cores are published to do.
inline DeviceRates device_rates(const cuda::Caps& gpu, double bandwidth) {
  if (gpu.sm == 90) return {.bandwidth = bandwidth, .bf16 = 790e12, .e4m3 = 1450e12};
  if (gpu.sm != 121) return {.bandwidth = bandwidth};
  const ProjectionDevice gb10 = *find_projection_device("gb10");
  const double clocks = gb10.clock * gpu.num_sms;
  return {.bandwidth = bandwidth,
          .bf16 = gb10.hmma * clocks,
          .e4m3 = gb10.qmma * clocks,
          .e2m1 = gb10.omma * clocks};
}

// What products of a row take their inputs as, by its name: <arch>_<weights><activations>_<regime>.
inline double product_rate(std::string_view kernel, const DeviceRates& rates) {
  if (kernel.find("a4_") != std::string_view::npos) return rates.e2m1;
  return kernel.find("a8_") != std::string_view::npos ? rates.e4m3 : rates.bf16;
}

// Of one op by the row `kernel`: the larger of what its bytes and its products take.
inline double floor_seconds(int64_t bytes, int64_t flops, std::string_view kernel,
                            const DeviceRates& rates) {
  const double moved = static_cast<double>(bytes) / rates.bandwidth;
  const double rate = product_rate(kernel, rates);
  return rate > 0 ? std::max(moved, static_cast<double>(flops) / rate) : moved;
}

}  // namespace nibble::cli
