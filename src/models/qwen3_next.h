// Qwen3-Next, and the text part of Qwen3.5's models with experts: three of four layers are gated
// delta nets, the fourth gated attention; experts beside a shared one in each.
#pragma once

#include <memory>

#include "models/site_model.h"

namespace nibble {

// Qwen3NextForCausalLM. Throws Error(kCheckpoint) naming file and key for a config that it is not.
std::unique_ptr<SiteModel> make_qwen3_next(const Config& config, Quantization quantization,
                                           const DenseFormats& dense, const Shard& shard);

// Qwen3_5MoeForConditionalGeneration and Qwen3_5MoeForCausalLM.
std::unique_ptr<SiteModel> make_qwen3_5_moe(const Config& config, Quantization quantization,
                                            const DenseFormats& dense, const Shard& shard);

}  // namespace nibble
