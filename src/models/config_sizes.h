// Sizes of config.json that all models have, and how large they may be: so that no sum of bytes
// leaves int64_t.
#pragma once

#include "io/config.h"

namespace nibble {

inline constexpr int64_t kMaxDim = 1 << 20;

// Throw Error(kCheckpoint) naming the key: of heads that do not fit together, and of `experts` in
// all layers that are more than 131,072, each with tensors of its own, or make more than 10^15
// parameters, `of_expert` each.
void check_heads(const Config& config, int64_t q_heads, int64_t kv_heads, int64_t head_dim);
void check_experts(const Config& config, const char* key, int64_t experts, int64_t of_expert);

}  // namespace nibble
