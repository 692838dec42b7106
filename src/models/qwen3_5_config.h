// config.json of Qwen3.5's dense models.
#pragma once

#include "models/hybrid_config.h"

namespace nibble {

struct Qwen35Config : HybridConfig {
  int64_t width = 0;  // F
};

// Throws Error(kCheckpoint) naming file and key.
Qwen35Config parse_qwen3_5(const Config& config);

}  // namespace nibble
