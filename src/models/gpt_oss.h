// gpt-oss: attention with sinks on alternating window and full layers, mixture of experts in MXFP4.
#pragma once

#include <memory>

#include "io/config.h"
#include "models/site_model.h"

namespace nibble {

// Throws Error(kCheckpoint) naming file and key, Error(kUnsupported) for what `dense` asks of a
// matrix that cannot be.
std::unique_ptr<SiteModel> make_gpt_oss(const Config& config, Quantization,
                                        const DenseFormats& dense, const Shard& shard);

}  // namespace nibble
