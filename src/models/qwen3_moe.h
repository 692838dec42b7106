// Qwen3-MoE: Qwen3 with experts in the place of every MLP.
#pragma once

#include <memory>

#include "models/site_model.h"

namespace nibble {

// Qwen3MoeForCausalLM. Throws Error(kCheckpoint) naming file and key for a config that it is not.
std::unique_ptr<SiteModel> make_qwen3_moe(const Config& config, Quantization quantization,
                                          const DenseFormats& dense, const Shard& shard);

}  // namespace nibble
