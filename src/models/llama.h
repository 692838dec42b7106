// Llama 3 and models of the same architecture: grouped-query attention, SwiGLU, RMS norms.
#pragma once

#include <memory>

#include "models/site_model.h"

namespace nibble {

// LlamaForCausalLM. Throws Error(kCheckpoint) naming file and key for a config that it is not.
std::unique_ptr<SiteModel> make_llama(const Config& config, Quantization quantization,
                                      const DenseFormats& dense, const Shard& shard);

}  // namespace nibble
