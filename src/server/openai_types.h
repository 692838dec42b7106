// Bodies of /v1/chat/completions and /v1/completions as typed values. Unknown fields are ignored,
// as clients expect; fields that would change the answer and are not supported are refused (the
// list is in openai_refused.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "server/api_error.h"
#include "text/chat/chat.h"

namespace nibble::server {

struct GenerationRequest {
  std::string model;        // "": the one that is served
  SamplingParams sampling;  // seed of the first choice; logprobs set
  std::optional<int64_t> max_tokens;
  int32_t min_tokens = 0;
  int32_t n = 1;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop_in_output = false;
  bool ignore_eos = false;
  bool return_token_ids = false;  // vLLM's: the ids beside the text
  bool stream = false;
  bool include_usage = false;     // stream_options: a last chunk with it
  bool continuous_usage = false;  // in every chunk
};

struct ChatRequest : GenerationRequest {
  Chat chat;
  bool include_reasoning = true;
};

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest : GenerationRequest {
  std::vector<Prompt> prompts;  // not empty
  bool echo = false;
  bool add_special_tokens = true;   // what the tokenizer's post-processor puts before a text
  bool skip_special_tokens = true;  // in the output
};

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

// `defaults`: sampling parameters where the request has none. The error of the first bad field, or
// nullopt and `request` is complete.
std::optional<ApiError> parse_chat_request(std::string_view body, const SamplingParams& defaults,
                                           ChatRequest& request);
std::optional<ApiError> parse_completion_request(std::string_view body,
                                                 const SamplingParams& defaults,
                                                 CompletionRequest& request);
std::optional<ApiError> parse_tokenize_request(std::string_view body, TokenizeRequest& request);
std::optional<ApiError> parse_detokenize_request(std::string_view body, DetokenizeRequest& request);

}  // namespace nibble::server
