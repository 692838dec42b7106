// Bodies of OpenAI's /v1/responses, as Codex CLI and the SDKs send them: the whole history as items
// in each request. Nothing is stored, so previous_response_id is refused.
#pragma once

#include <optional>
#include <string_view>

#include "server/api_error.h"
#include "server/generation_request.h"
#include "server/json_fields.h"

namespace nibble::server {

struct ResponsesRequest : ChatRequest {
  Json echo = Json::object();  // fields that the answer repeats: tools, tool_choice, ...
};

// Into a fresh `request`; see openai_types.h.
std::optional<ApiError> parse_responses_request(std::string_view body,
                                                const SamplingParams& defaults,
                                                ResponsesRequest& request);

}  // namespace nibble::server
