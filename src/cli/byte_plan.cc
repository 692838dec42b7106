#include "cli/byte_plan.h"

#include <algorithm>
#include <cmath>

namespace nibble::cli {

std::optional<PlanDevice> find_plan_device(std::string_view name) {
  // GB10: 273 GB/s is NVIDIA's figure, 233 what programs published so far read at; memory as the
  // operating system of a DGX Spark reports it. H200: measured with a streaming kernel.
  static const PlanDevice kDevices[] = {
      {.name = "gb10",
       .title = "NVIDIA GB10 (DGX Spark)",
       .memory_bytes = 119'700'000'000,
       .shared_with_gpu = true,
       .nominal_bandwidth = 273e9,
       .read_bandwidth = 233e9},
      {.name = "h200",
       .title = "NVIDIA H200",
       .memory_bytes = 141'000'000'000,
       .shared_with_gpu = false,
       .nominal_bandwidth = 4800e9,
       .read_bandwidth = 4550e9},
  };
  for (const PlanDevice& device : kDevices)
    if (device.name == name) return device;
  return std::nullopt;
}

double weight_bytes_read(const WeightPart& part, int64_t tokens) {
  const double untouched = 1.0 - static_cast<double>(part.chosen) / part.choices;
  return static_cast<double>(part.bytes) * (1.0 - std::pow(untouched, tokens));
}

double weight_bytes_read(const ModelInfo& info, int64_t tokens) {
  double bytes = 0;
  for (const WeightPart& part : info.parts) bytes += weight_bytes_read(part, tokens);
  return bytes;
}

int64_t kv_bytes_per_position(const LayerGroup& group, DType kv) {
  return 2 * int64_t{group.num_kv_heads} * group.head_dim * dtype_bytes(kv);
}

namespace {

// K and V of one position in all layers of the group.
int64_t group_bytes(const LayerGroup& group, DType kv) {
  return static_cast<int64_t>(group.layers.size()) * kv_bytes_per_position(group, kv);
}

}  // namespace

int64_t kv_bytes_read(const ModelInfo& info, DType kv, int64_t context) {
  int64_t bytes = 0;
  for (const LayerGroup& group : info.groups) {
    const int64_t seen =
        group.window == kNoWindow ? context : std::min<int64_t>(context, group.window);
    bytes += seen * group_bytes(group, kv);
  }
  return bytes;
}

int64_t kv_bytes_per_token(const ModelInfo& info, DType kv) {
  int64_t bytes = 0;
  for (const LayerGroup& group : info.groups)
    if (group.window == kNoWindow) bytes += group_bytes(group, kv);
  return bytes;
}

int64_t kv_window_bytes(const ModelInfo& info, DType kv) {
  int64_t bytes = 0;
  for (const LayerGroup& group : info.groups) bytes += group.window * group_bytes(group, kv);
  return bytes;
}

int64_t state_bytes(const ModelInfo& info) {
  int64_t bytes = 0;
  for (const LayerGroup& group : info.groups)
    bytes += static_cast<int64_t>(group.layers.size()) * group.recurrent.bytes();
  return bytes;
}

}  // namespace nibble::cli
