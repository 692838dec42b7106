// Bodies of Anthropic's /v1/messages and /v1/messages/count_tokens, as Claude Code and the SDKs
// send them. Unknown fields are ignored, and so are tools that only Anthropic's servers run.
#pragma once

#include <optional>
#include <string_view>

#include "server/api_error.h"
#include "server/generation_request.h"

namespace nibble::server {

struct MessagesRules {
  bool counting = false;        // for count_tokens, where max_tokens need not be
  bool refuses_images = false;  // those of the user's own; in results of tools they become words
};

// Into a fresh `request`; see openai_types.h.
std::optional<ApiError> parse_messages_request(std::string_view body,
                                               const SamplingParams& defaults,
                                               const MessagesRules& rules, ChatRequest& request);

}  // namespace nibble::server
