#include "engine/request_check.h"

#include <cmath>
#include <concepts>
#include <cstdio>

namespace nibble {
namespace {

template <std::integral T>
std::string text(T x) {
  return std::to_string(x);
}

std::string text(float x) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%g", x);
  return buffer;
}

// "" or "<name> is <value>; it must be <range>".
template <typename T>
std::string must(bool ok, const char* name, T value, const char* range) {
  if (ok) return "";
  return std::string(name) + " is " + text(value) + "; it must be " + range;
}

std::string find_bad_id(const std::vector<int32_t>& ids, const char* name, int32_t vocab_size) {
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return std::string(name) + " contains " + text(id) + "; ids of this model are 0 to " +
             text(vocab_size - 1);
    }
  }
  return "";
}

std::string find_fault(const SamplingParams& p, int32_t vocab_size) {
  const std::string faults[] = {
      must(std::isfinite(p.temperature) && p.temperature >= 0, "temperature", p.temperature,
           "a number of at least 0"),
      must(p.top_p > 0 && p.top_p <= 1, "top_p", p.top_p, "above 0 and at most 1"),
      must(p.top_k >= -1, "top_k", p.top_k, "at least 1, or 0 for all"),
      must(p.min_p >= 0 && p.min_p <= 1, "min_p", p.min_p, "between 0 and 1"),
      must(std::isfinite(p.repetition_penalty) && p.repetition_penalty > 0, "repetition_penalty",
           p.repetition_penalty, "above 0"),
      must(std::isfinite(p.presence_penalty), "presence_penalty", p.presence_penalty, "a number"),
      must(std::isfinite(p.frequency_penalty), "frequency_penalty", p.frequency_penalty,
           "a number"),
      must(p.logprobs >= -1 && p.logprobs <= kMaxTopLogprobs, "logprobs", p.logprobs,
           "between 0 and 1024")};
  for (const std::string& fault : faults) {
    if (!fault.empty()) return fault;
  }
  for (const auto& [id, bias] : p.logit_bias) {
    if (std::string fault = find_bad_id({id}, "logit_bias", vocab_size); !fault.empty()) {
      return fault;
    }
    if (!std::isfinite(bias)) return "logit_bias of " + text(id) + " is not a number";
  }
  return "";
}

}  // namespace

std::string find_fault(const Request& request, const RequestLimits& limits) {
  const auto num_prompt = static_cast<int64_t>(request.prompt.size());
  if (num_prompt == 0) return "the prompt is empty; it must hold at least one token";
  if (num_prompt + request.max_tokens > limits.max_model_len) {
    return "the prompt's " + text(num_prompt) + " tokens and max_tokens " +
           text(request.max_tokens) + " are more than the context of " +
           text(limits.max_model_len) + " tokens";
  }
  const std::string faults[] = {
      must(request.max_tokens > 0 || (request.max_tokens == 0 && request.prompt_logprobs >= 0),
           "max_tokens", request.max_tokens, "at least 1"),
      must(request.min_tokens >= 0 && request.min_tokens <= request.max_tokens, "min_tokens",
           request.min_tokens, "between 0 and max_tokens"),
      must(request.prompt_logprobs >= -1 && request.prompt_logprobs <= kMaxTopLogprobs,
           "prompt_logprobs", request.prompt_logprobs, "between 0 and 1024"),
      must(request.cache_salt.size() <= kMaxSaltBytes, "the length of cache_salt",
           request.cache_salt.size(), "at most 256 bytes"),
      find_bad_id(request.prompt, "the prompt", limits.vocab_size),
      find_bad_id(request.stop_ids, "stop_ids", limits.vocab_size),
      find_fault(request.sampling, limits.vocab_size)};
  for (const std::string& fault : faults) {
    if (!fault.empty()) return fault;
  }
  return "";
}

}  // namespace nibble
