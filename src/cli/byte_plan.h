// What a model costs in bytes, and the speed limit that follows: pure functions of ModelInfo.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/model.h"

namespace nibble::cli {

// A device that plans are made for. Rates are bytes per second.
struct PlanDevice {
  std::string name;
  std::string title;
  int64_t memory_bytes = 0;
  bool shared_with_gpu = false;  // CPU and GPU share the memory
  double nominal_bandwidth = 0;  // 0: not known
  double read_bandwidth = 0;     // what a read-only program reaches
};

// "gb10", "h200"; nullopt for others.
std::optional<PlanDevice> find_plan_device(std::string_view name);

// Expected weight bytes that one step of `tokens` tokens reads, every stream choosing its experts
// evenly and by itself.
double weight_bytes_read(const ModelInfo& info, int64_t tokens);
// The same of one part.
double weight_bytes_read(const WeightPart& part, int64_t tokens);

// K and V of one position in one layer of the group.
int64_t kv_bytes_per_position(const LayerGroup& group, DType kv);
// K and V that one token at position `context` reads: windows bound what window layers read.
int64_t kv_bytes_read(const ModelInfo& info, DType kv, int64_t context);
// What a sequence keeps per further token (full layers), and at most besides (window layers).
int64_t kv_bytes_per_token(const ModelInfo& info, DType kv);
int64_t kv_window_bytes(const ModelInfo& info, DType kv);
// The state of all recurrent layers of a sequence. A step reads it and writes another.
int64_t state_bytes(const ModelInfo& info);

}  // namespace nibble::cli
