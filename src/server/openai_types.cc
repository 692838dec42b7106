#include "server/openai_types.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "server/json_fields.h"
#include "server/openai_chat_types.h"
#include "server/openai_format.h"
#include "server/openai_refused.h"

namespace nibble::server {
namespace {

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr int32_t kMaxChoices = 128;
constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopIds = 1'024;
constexpr size_t kMaxPrompts = 1'024;
constexpr int32_t kMaxTop = 20;
constexpr double kMostPenalty = 2;  // OpenAI's, and vLLM's

void read_logit_bias(JsonFields& fields, SamplingParams& sampling) {
  const Json* bias = fields.object("logit_bias");
  if (!bias) return;
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const char* end = key.data() + key.size();
    const auto read = std::from_chars(key.data(), end, id);
    const bool is_id = read.ec == std::errc() && read.ptr == end && id >= 0;
    if (!is_id || !value.is_number()) {
      return fields.fail("logit_bias", "has to map token ids (\"123\") to numbers");
    }
    const double b = value.get<double>();
    if (b < -100 || b > 100) return fields.fail("logit_bias", "has a value outside -100 to 100");
    sampling.logit_bias.emplace_back(id, static_cast<float>(b));
  }
}

void read_sampling(JsonFields& fields, SamplingParams& s) {
  s.temperature = static_cast<float>(fields.number("temperature", s.temperature, 0, 100));
  s.top_p = static_cast<float>(fields.number("top_p", s.top_p, 0, 1));
  if (s.top_p == 0 && !fields.failed()) s.top_p = std::numeric_limits<float>::min();
  // vLLM has -1 for all, llama.cpp 0.
  s.top_k =
      static_cast<int32_t>(std::max<int64_t>(0, fields.integer("top_k", s.top_k, -1, kMaxTokens)));
  s.min_p = static_cast<float>(fields.number("min_p", s.min_p, 0, 1));
  const char* repetition = fields.has("repeat_penalty") ? "repeat_penalty" : "repetition_penalty";
  s.repetition_penalty =
      static_cast<float>(fields.number(repetition, s.repetition_penalty, 1e-3, 1e3));
  s.presence_penalty = static_cast<float>(
      fields.number("presence_penalty", s.presence_penalty, -kMostPenalty, kMostPenalty));
  s.frequency_penalty = static_cast<float>(
      fields.number("frequency_penalty", s.frequency_penalty, -kMostPenalty, kMostPenalty));
  if (const Json* seed = fields.find("seed")) {
    if (seed->is_number_unsigned()) {
      s.seed = seed->get<uint64_t>();
    } else {
      const int64_t value = fields.integer("seed", 0, std::numeric_limits<int64_t>::min(),
                                           std::numeric_limits<int64_t>::max());
      if (value != -1) s.seed = static_cast<uint64_t>(value);  // llama.cpp's "any"
    }
  }
  read_logit_bias(fields, s);
}

void read_stop(JsonFields& fields, GenerationRequest& request) {
  if (const Json* stop = fields.find("stop")) {
    const Json list = stop->is_array() ? *stop : Json::array({*stop});
    if (list.size() > kMaxStops) return fields.fail("stop", "has more than 64 strings");
    size_t bytes = 0;
    for (const Json& item : list) {
      if (!item.is_string()) return fields.fail("stop", "has to be a string or an array of them");
      auto text = item.get<std::string>();
      if (text.empty()) return fields.fail("stop", "has an empty string");
      bytes += text.size();
      if (bytes > kMaxStopBytes) return fields.fail("stop", "has more than 8192 bytes in all");
      request.stop.push_back(std::move(text));
    }
  }
  request.stop_token_ids = fields.ids("stop_token_ids");
  if (request.stop_token_ids.size() > kMaxStopIds) {
    return fields.fail("stop_token_ids", "has more than 1024 ids");
  }
  request.include_stop_in_output = fields.boolean("include_stop_str_in_output", false);
  request.ignore_eos = fields.boolean("ignore_eos", false);
}

void read_stream(JsonFields& fields, GenerationRequest& request) {
  request.stream = fields.boolean("stream", false);
  const Json* options = fields.object("stream_options");
  if (!options) return;
  if (!request.stream) return fields.fail("stream_options", "goes with stream: true only");
  JsonFields inner(*options, "stream_options", fields.error());
  request.include_usage = inner.boolean("include_usage", false);
  request.continuous_usage = inner.boolean("continuous_usage_stats", false);
}

void read_generation(JsonFields& fields, GenerationRequest& request) {
  request.model = fields.string("model");
  read_sampling(fields, request.sampling);
  request.n = static_cast<int32_t>(fields.integer("n", 1, 1, kMaxChoices));
  if (fields.integer("best_of", request.n, 1, kMaxChoices) != request.n) {
    fields.fail("best_of", "other than n is not supported");
  }
  request.min_tokens = static_cast<int32_t>(fields.integer("min_tokens", 0, 0, kMaxTokens));
  request.return_token_ids = fields.boolean("return_token_ids", false);
  read_scheduling(fields, request);
  read_stop(fields, request);
  read_stream(fields, request);
  read_format(fields, request);
  refuse_unsupported_fields(fields);
}

// Where the request itself says both; what is left of the context bounds either.
void check_min_tokens(JsonFields& fields, const GenerationRequest& request) {
  if (request.max_tokens && request.min_tokens > *request.max_tokens)
    fields.fail("min_tokens", "is more than max_tokens");
}

void read_one_prompt(JsonFields& fields, const Json& value, std::vector<Prompt>& prompts) {
  constexpr const char* kForms = "has to be a string, token ids, or an array of these";
  if (value.is_string()) {
    prompts.emplace_back(value.get<std::string>());
  } else if (value.is_array()) {
    const Json holder = {{"prompt", value}};
    std::optional<ApiError> error;
    JsonFields inner(holder, "", error);
    prompts.emplace_back(inner.ids("prompt"));
    if (error) fields.fail("prompt", kForms);
  } else {
    fields.fail("prompt", kForms);
  }
}

void read_prompts(JsonFields& fields, std::vector<Prompt>& prompts) {
  const Json* prompt = fields.find("prompt");
  if (!prompt) return fields.fail("prompt", "is missing");
  const bool several = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!several) return read_one_prompt(fields, *prompt, prompts);
  if (prompt->size() > kMaxPrompts) return fields.fail("prompt", "has more than 1024 prompts");
  for (const Json& one : *prompt) {
    if (fields.failed()) return;
    read_one_prompt(fields, one, prompts);
  }
}

}  // namespace

std::optional<ApiError> parse_chat_request(std::string_view body, const SamplingParams& defaults,
                                           ChatRequest& request) {
  return read_body(body, [&](JsonFields& fields) {
    request.sampling = defaults;
    read_generation(fields, request);
    refuse_unsupported_chat_fields(fields);
    const char* max = fields.has("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    if (fields.has(max)) request.max_tokens = fields.integer(max, 1, 1, kMaxTokens);
    check_min_tokens(fields, request);
    const bool logprobs = fields.boolean("logprobs", false);
    const auto top = static_cast<int32_t>(fields.integer("top_logprobs", 0, 0, kMaxTop));
    if (fields.has("top_logprobs") && top > 0 && !logprobs) {
      fields.fail("top_logprobs", "goes with logprobs: true only");
    }
    request.sampling.logprobs = logprobs ? top : -1;
    read_chat(fields, request.chat, request.include_reasoning);
    const Json* functions = fields.array("functions");
    request.is_old_form = functions && !functions->empty();
    request.parallel_tool_calls = fields.boolean("parallel_tool_calls", true);
    describe_format(fields, request);
  });
}

std::optional<ApiError> parse_completion_request(std::string_view body,
                                                 const SamplingParams& defaults,
                                                 CompletionRequest& request) {
  return read_body(body, [&](JsonFields& fields) {
    request.sampling = defaults;
    read_generation(fields, request);
    read_prompts(fields, request.prompts);
    request.max_tokens = fields.integer("max_tokens", 16, 0, kMaxTokens);  // OpenAI's default
    request.echo = fields.boolean("echo", false);
    if (*request.max_tokens == 0 && !request.echo) {
      fields.fail("max_tokens", "can be 0 with echo only");
    }
    check_min_tokens(fields, request);
    request.sampling.logprobs = static_cast<int32_t>(fields.integer("logprobs", -1, 0, kMaxTop));
    request.add_special_tokens = fields.boolean("add_special_tokens", true);
    request.skip_special_tokens = fields.boolean("skip_special_tokens", true);
    if (!fields.string("suffix").empty()) fields.fail("suffix", "is not supported");
    if (fields.has("prompt_logprobs")) {
      fields.fail("prompt_logprobs", "is not supported: use echo with logprobs");
    }
  });
}

std::optional<ApiError> parse_tokenize_request(std::string_view body, TokenizeRequest& request) {
  return read_body(body, [&](JsonFields& fields) {
    request.model = fields.string("model");
    request.add_special_tokens = fields.boolean("add_special_tokens", true);
    request.return_token_strs = fields.boolean("return_token_strs", false);
    if (fields.has("messages")) {
      bool include_reasoning = true;
      refuse_unsupported_chat_fields(fields);
      read_chat(fields, request.chat.emplace(), include_reasoning);
    } else if (fields.has("prompt")) {
      request.prompt = fields.string("prompt");
    } else {
      fields.fail("prompt", "is missing (a text), and so are messages (a chat)");
    }
  });
}

std::optional<ApiError> parse_detokenize_request(std::string_view body,
                                                 DetokenizeRequest& request) {
  return read_body(body, [&](JsonFields& fields) {
    request.model = fields.string("model");
    if (!fields.has("tokens")) fields.fail("tokens", "is missing");
    request.tokens = fields.ids("tokens");
  });
}

}  // namespace nibble::server
