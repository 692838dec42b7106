#include "models/qwen3_5_config.h"

#include "models/config_sizes.h"

namespace nibble {

Qwen35Config parse_qwen3_5(const Config& config) {
  const TextConfig text(config);
  return {parse_hybrid(text, config.texts("architectures").at(0), ops::DeltaInputs::kInOrder),
          text.config.integer("intermediate_size", 1, kMaxDim)};
}

}  // namespace nibble
