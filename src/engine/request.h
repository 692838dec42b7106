// What a caller asks of the engine and what comes back, token by token.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/token_watcher.h"

namespace nibble {

using RequestId = int64_t;

inline constexpr int32_t kMaxDrafts = 32;

struct SamplingParams {
  float temperature = 1.0f;  // 0: the largest logit, lowest id on ties
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0: all
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and output
  float presence_penalty = 0.0f;    // over output
  float frequency_penalty = 0.0f;   // over output
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  std::optional<uint64_t> seed = {};  // the same seed gives the same text, alone or in a batch
  int32_t logprobs = -1;              // tops to report per token; 0: the sampled id only; -1: none
};

enum class FinishReason : uint8_t {
  kNone,      // more is to come
  kStop,      // a stop id, or the watcher said so
  kLength,    // max_tokens
  kCanceled,  // by cancel()
  kError,     // Output::error says what failed
  kDeadline   // its time was up
};
inline constexpr int kNumFinishReasons = 6;

// The model's own: before bias, penalties, masks and temperature.
struct TokenLogprob {
  int32_t id;
  float logprob;
};

// One event of a request. Every request ends with exactly one whose finish is not kNone. An event
// of kCanceled, kError, kDeadline and (for max_tokens 0) kLength carries no token: id is -1.
struct Output {
  int32_t id = -1;
  float logprob = 0;                   // of id; with logprobs >= 0
  std::vector<TokenLogprob> top = {};  // best first
  FinishReason finish = FinishReason::kNone;
  int32_t cached_tokens = 0;  // of the prompt, found in the prefix cache
  std::string error = {};
  bool is_bad_request = false;  // of an error: what was asked for cannot be done; no fault of ours
};

// Of prompt position i: the log-probability of the id that follows, and the best ids.
struct PromptLogprobs {
  int32_t position;
  int32_t id;
  float next_logprob;  // NaN at the last position, whose successor is not known
  std::vector<TokenLogprob> top = {};
};

struct Request {
  std::vector<int32_t> prompt = {};  // not empty
  SamplingParams sampling = {};
  int32_t max_tokens = 0;  // new ids; 0: none, needs prompt_logprobs. With the prompt at
                           // most Engine::max_model_len()
  int32_t min_tokens = 0;  // stop ids are masked before, but where the watcher lets nothing else
                           // through
  std::vector<int32_t> stop_ids = {};  // reported as the last id, then kStop
  std::shared_ptr<TokenWatcher> watcher = {};
  int32_t prompt_logprobs = -1;  // tops per prompt position; -1: none
  int32_t priority = 0;          // lower numbers go first, and others' pages when they run out
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
  int32_t max_drafts = kMaxDrafts;  // tokens drafted ahead of the text in a step; 0: none
  std::string cache_salt = {};      // only requests of the same salt share cached prefixes

  // Called on the engine's thread, in order; must not block or throw.
  std::function<void(const Output&)> on_output = {};
  std::function<void(const PromptLogprobs&)> on_prompt_logprobs = {};
};

}  // namespace nibble
