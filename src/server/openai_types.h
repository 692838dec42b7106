// Bodies of OpenAI's /v1/chat/completions and /v1/completions, and of vLLM's /tokenize and
// /detokenize, as typed values. Unknown fields are ignored, as clients expect; fields that would
// change the answer and are not supported are refused (the list is in openai_refused.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/api_error.h"
#include "server/generation_request.h"

namespace nibble::server {

// /tokenize: a text, or a chat as it would be rendered.
struct TokenizeRequest {
  std::string model;
  std::optional<std::string> prompt;
  std::optional<Chat> chat;
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

// Into a fresh `request`. `defaults`: sampling parameters where the body has none. The error of the
// first bad field, or nullopt and `request` is complete.
std::optional<ApiError> parse_chat_request(std::string_view body, const SamplingParams& defaults,
                                           ChatRequest& request);
std::optional<ApiError> parse_completion_request(std::string_view body,
                                                 const SamplingParams& defaults,
                                                 CompletionRequest& request);
std::optional<ApiError> parse_tokenize_request(std::string_view body, TokenizeRequest& request);
std::optional<ApiError> parse_detokenize_request(std::string_view body, DetokenizeRequest& request);

}  // namespace nibble::server
