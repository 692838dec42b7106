// config.json of Qwen3-Next and of Qwen3.5's models with experts.
#pragma once

#include "models/hybrid_config.h"

namespace nibble {

struct Qwen3NextConfig : HybridConfig {
  int64_t experts = 0;       // E
  int64_t top_k = 0;         // K
  int64_t width = 0;         // F
  int64_t shared_width = 0;  // of the expert beside them
  bool over_all = false;  // chosen experts' weights are their part of all, not divided by their sum
};

// Throw Error(kCheckpoint) naming file and key.
Qwen3NextConfig parse_qwen3_next(const Config& config);
Qwen3NextConfig parse_qwen3_5_moe(const Config& config);

}  // namespace nibble
