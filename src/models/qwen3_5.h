// The text part of Qwen3.5: Qwen3-Next with an MLP in the place of all experts.
#pragma once

#include <memory>

#include "models/site_model.h"

namespace nibble {

// Qwen3_5ForConditionalGeneration and Qwen3_5ForCausalLM. Throws Error(kCheckpoint) naming file and
// key for a config that it is not.
std::unique_ptr<SiteModel> make_qwen3_5(const Config& config, Quantization quantization,
                                        const DenseFormats& dense, const Shard& shard);

}  // namespace nibble
