// Whether a request can be served at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/request.h"

namespace nibble {

inline constexpr int32_t kMaxTopLogprobs = 1024;  // per position
inline constexpr size_t kMaxSaltBytes = 256;      // kept as long as the pages of its prompts

struct RequestLimits {
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
};

// What is wrong, in words for the user; empty: nothing.
std::string find_fault(const Request& request, const RequestLimits& limits);

}  // namespace nibble
