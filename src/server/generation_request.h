// What a caller wants generated, whichever API was used: the one form that the adapters of all APIs
// (openai_*, anthropic_*, responses_*) read into, and that generations are made of.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "text/chat/chat.h"
#include "text/grammar/grammar.h"

namespace nibble::server {

// Either way: the most that one may go before others is minutes of this number.
constexpr int32_t kMaxPriority = 10;
constexpr size_t kMaxStopBytes = 8'192;  // of all stop strings: each byte takes 150 in tables

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
  bool return_token_ids = false;      // vLLM's: the ids beside the text
  std::optional<GrammarSpec> format;  // of the completion, or of a chat's final message
  std::string format_field;           // where the caller asked for it, for errors
  std::string cache_salt;             // only requests of the same salt share cached prefixes
  int32_t max_drafts = kMaxDrafts;    // tokens drafted ahead; 0: none
  int32_t priority = 0;               // lower numbers go first: by a minute each
  std::optional<std::chrono::steady_clock::time_point> deadline;
  bool stream = false;
  bool include_usage = false;     // stream_options: a last chunk with it
  bool continuous_usage = false;  // in every chunk
};

struct ChatRequest : GenerationRequest {
  Chat chat;
  size_t echo_bytes = 0;  // held beside it until the answer is there
  bool include_reasoning = true;
  bool is_old_form = false;         // of OpenAI's: functions, answered by a function_call
  bool parallel_tool_calls = true;  // a model of Harmony ends with its first call in either case
};

class JsonFields;
// What requests of all APIs may say of how they run: cache_salt, num_speculative_tokens, priority
// and timeout, in seconds from now.
void read_scheduling(JsonFields& fields, GenerationRequest& request);

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest : GenerationRequest {
  std::vector<Prompt> prompts;  // not empty
  bool echo = false;
  bool add_special_tokens = true;   // what the tokenizer's post-processor puts before a text
  bool skip_special_tokens = true;  // in the output
};

}  // namespace nibble::server
