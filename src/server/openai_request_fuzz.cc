// Bodies of requests: whatever the bytes, a typed request or an error that says what is wrong.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/anthropic_types.h"
#include "server/openai_types.h"
#include "server/responses_types.h"

namespace {

using nibble::server::ApiError;

// An error has to be one that can be sent.
void check(const std::optional<ApiError>& error) {
  if (error && (error->status != 400 || error->message.empty())) std::abort();
  if (error) nibble::server::api_error_body(*error);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  nibble::server::ChatRequest chat;
  check(nibble::server::parse_chat_request(body, {}, chat));
  nibble::server::CompletionRequest completion;
  const auto error = nibble::server::parse_completion_request(body, {}, completion);
  check(error);
  if (!error && completion.prompts.empty()) std::abort();
  nibble::server::ChatRequest messages;
  check(nibble::server::parse_messages_request(body, {}, size % 2 == 0, messages));
  nibble::server::ResponsesRequest responses;
  check(nibble::server::parse_responses_request(body, {}, responses));
  nibble::server::TokenizeRequest tokenize;
  check(nibble::server::parse_tokenize_request(body, tokenize));
  nibble::server::DetokenizeRequest detokenize;
  check(nibble::server::parse_detokenize_request(body, detokenize));
  return 0;
}
