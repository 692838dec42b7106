// Qwen3, dense: Llama's block with a norm of each head of q and k.
#pragma once

#include <memory>

#include "models/site_model.h"

namespace nibble {

// Qwen3ForCausalLM. Throws Error(kCheckpoint) naming file and key for a config that it is not.
std::unique_ptr<SiteModel> make_qwen3(const Config& config, Quantization quantization,
                                      const DenseFormats& dense, const Shard& shard);

}  // namespace nibble
