// rope_parameters or rope_scaling of config.json, as the models here have them.
#pragma once

#include <initializer_list>
#include <string>

#include "io/config.h"
#include "ops/rope/rope.h"

namespace nibble {

// One of `types`: default, yarn, llama3. Throws Error(kCheckpoint) naming the key for others, and
// for what does not fit together.
ops::Rope parse_rope(const Config& config, int64_t head_dim, int64_t max_positions,
                     std::initializer_list<const char*> types);

}  // namespace nibble
