// NemotronH: Nemotron-3-Nano and its like. One mixer a layer: Mamba2, attention without a rotary
// embedding, experts behind a router of sigmoids, or an MLP; all without gates, by relu^2.
#pragma once

#include <memory>

#include "models/site_model.h"

namespace nibble {

// NemotronHForCausalLM. Throws Error(kCheckpoint) naming file and key for a config that it is not.
std::unique_ptr<SiteModel> make_nemotron_h(const Config& config, Quantization quantization,
                                           const DenseFormats& dense, const Shard& shard);

}  // namespace nibble
