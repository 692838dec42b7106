// Bodies of requests: whatever the bytes, a typed request or an error that says what is wrong. Of
// what is tried, half stays JSON: values move, or become ones that the APIs know.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <vector>

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

using Json = nlohmann::json;

const char* const kKeys[] = {"role",        "content",     "type",         "text",
                             "tools",       "function",    "name",         "parameters",
                             "arguments",   "tool_choice", "tool_calls",   "response_format",
                             "json_schema", "schema",      "stop",         "logit_bias",
                             "stream",      "input",       "input_schema", "cache_control"};
const Json kValues[] = {nullptr,
                        true,
                        -1,
                        0,
                        1,
                        2,
                        1e308,
                        9223372036854775807,
                        18446744073709551615u,
                        0.5,
                        "",
                        "auto",
                        "none",
                        "required",
                        "user",
                        "assistant",
                        "system",
                        "tool",
                        "function",
                        "text",
                        "json_schema",
                        "json_object",
                        "function_call",
                        "function_call_output",
                        "tool_use",
                        "tool_result",
                        "image",
                        "\xc3\xa9\n",
                        Json::array(),
                        Json::object()};

// Values of an object or array, and what is within.
void list_values(Json& value, std::vector<Json*>& values) {
  values.push_back(&value);
  if (!value.is_structured()) return;
  for (Json& inner : value) list_values(inner, values);
}

// JSON that is nested deeper ends the program where it is written.
bool is_deep(const uint8_t* data, size_t size) {
  constexpr int kDeep = 100;
  return std::count_if(data, data + size, [](uint8_t c) { return c == '[' || c == '{'; }) > kDeep;
}

void change(Json& body, std::minstd_rand& random) {
  std::vector<Json*> values;
  list_values(body, values);
  Json& value = *values[random() % values.size()];
  const Json other = *values[random() % values.size()];
  const Json known = kValues[random() % std::size(kValues)];
  const char* key = kKeys[random() % std::size(kKeys)];
  switch (random() % 4) {
    case 0:
      value = other;
      return;
    case 1:
      value = known;
      return;
    case 2:
      if (value.is_object()) value[key] = random() % 2 == 0 ? other : known;
      if (value.is_array()) value.push_back(other);
      return;
    default:
      if (value.is_structured() && !value.empty()) {
        auto at = value.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(random() % value.size()));
        value.erase(at);
      }
  }
}

}  // namespace

// libFuzzer's; not there where the corpus is only replayed.
extern "C" __attribute__((weak)) size_t LLVMFuzzerMutate(uint8_t* data, size_t size,
                                                         size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  std::minstd_rand random(seed + 1);
  if (random() % 2 == 0 || is_deep(data, size)) return LLVMFuzzerMutate(data, size, max_size);
  Json body = Json::parse(data, data + size, nullptr, false);
  if (body.is_discarded()) return LLVMFuzzerMutate(data, size, max_size);
  for (auto n = 1 + random() % 4; n > 0; --n) change(body, random);
  const std::string text = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  nibble::server::ChatRequest chat;
  const auto error_of_chat = nibble::server::parse_chat_request(body, {}, chat);
  check(error_of_chat);
  // What is no JSON object ends in read_body(), which all APIs share.
  if (error_of_chat && error_of_chat->message.starts_with("the body ")) return 0;
  nibble::server::CompletionRequest completion;
  const auto error = nibble::server::parse_completion_request(body, {}, completion);
  check(error);
  if (!error && completion.prompts.empty()) std::abort();
  nibble::server::ChatRequest messages;
  check(nibble::server::parse_messages_request(
      body, {}, {.counting = size % 2 == 0, .refuses_images = size % 3 == 0}, messages));
  nibble::server::ResponsesRequest responses;
  check(nibble::server::parse_responses_request(body, {}, responses));
  nibble::server::TokenizeRequest tokenize;
  check(nibble::server::parse_tokenize_request(body, tokenize));
  nibble::server::DetokenizeRequest detokenize;
  check(nibble::server::parse_detokenize_request(body, detokenize));
  return 0;
}
