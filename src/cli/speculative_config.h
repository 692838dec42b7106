// --speculative-config: vLLM's JSON object of how tokens are drafted.
#pragma once

#include <string>

#include "engine/speculation_options.h"

namespace nibble::cli {

// "": none. Throws Error(kUsage) that names the field and says what would do.
SpeculationOptions parse_speculative_config(const std::string& json);

}  // namespace nibble::cli
