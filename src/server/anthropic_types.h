// Bodies of Anthropic's /v1/messages and /v1/messages/count_tokens, as Claude Code and the SDKs
// send them. Unknown fields are ignored, and so are tools that only Anthropic's servers run.
#pragma once

#include <optional>
#include <string_view>

#include "server/api_error.h"
#include "server/generation_request.h"

namespace nibble::server {

// Into a fresh `request`; see openai_types.h. `counting`: for count_tokens, where max_tokens need
// not be.
std::optional<ApiError> parse_messages_request(std::string_view body,
                                               const SamplingParams& defaults, bool counting,
                                               ChatRequest& request);

}  // namespace nibble::server
