// What the engine's tests share: a client that keeps every event, and ways to run requests.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/toy_model.h"

namespace nibble {

// Everything that was reported of one request.
struct Transcript {
  std::vector<int32_t> ids;
  std::vector<Output> outputs;
  std::vector<PromptLogprobs> scores;
  int32_t num_ends = 0;
  int32_t cached_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  std::string error;
};

inline bool operator==(const TokenLogprob& a, const TokenLogprob& b) {
  return a.id == b.id && a.logprob == b.logprob;
}
inline bool operator==(const Output& a, const Output& b) {
  return a.id == b.id && a.logprob == b.logprob && a.top == b.top && a.finish == b.finish;
}
inline bool operator==(const PromptLogprobs& a, const PromptLogprobs& b) {
  const bool both_nan = a.next_logprob != a.next_logprob && b.next_logprob != b.next_logprob;
  return a.position == b.position && a.id == b.id && a.top == b.top &&
         (a.next_logprob == b.next_logprob || both_nan);
}
inline bool operator==(const Transcript& a, const Transcript& b) {
  return a.outputs == b.outputs && a.scores == b.scores && a.finish == b.finish;
}

// Points the request's callbacks at a new transcript.
inline std::shared_ptr<Transcript> record(Request& request) {
  auto transcript = std::make_shared<Transcript>();
  request.on_output = [transcript](const Output& output) {
    if (output.id >= 0) {
      transcript->ids.push_back(output.id);
      transcript->outputs.push_back(output);
      transcript->cached_tokens = output.cached_tokens;
    }
    if (output.finish != FinishReason::kNone) {
      ++transcript->num_ends;
      transcript->finish = output.finish;
      transcript->error = output.error;
    }
  };
  request.on_prompt_logprobs = [transcript](const PromptLogprobs& scores) {
    transcript->scores.push_back(scores);
  };
  return transcript;
}

// A prompt that differs from others of another `salt`.
inline std::vector<int32_t> toy_prompt(int32_t length, int32_t salt,
                                       int32_t vocab = ToyModel::kVocab) {
  std::vector<int32_t> ids(length);
  for (int32_t i = 0; i < length; ++i) ids[i] = (i * i * 3 + i * (salt + 5) + salt * 11) % vocab;
  return ids;
}

inline EngineOptions toy_options() {
  return {.max_num_seqs = 16,
          .max_num_batched_tokens = 64,
          .max_model_len = 512,
          .page_size = 4,
          .kv_dtype = DType::kF32,
          .kv_bytes = int64_t{16} << 20};
}

inline std::vector<Transcript> step_until_ended(
    Engine& engine, const std::vector<std::shared_ptr<Transcript>>& transcripts) {
  while (engine.step()) {
  }
  std::vector<Transcript> result;
  for (const auto& transcript : transcripts) {
    CHECK(transcript->num_ends == 1);
    result.push_back(*transcript);
  }
  return result;
}

// Submits all at once and steps until all have ended.
inline std::vector<Transcript> run_all(Engine& engine, const std::vector<Request>& requests) {
  std::vector<std::shared_ptr<Transcript>> transcripts;
  for (Request request : requests) {
    transcripts.push_back(record(request));
    const Result<RequestId> id = engine.submit(std::move(request));
    CHECK(id.ok());
  }
  return step_until_ended(engine, transcripts);
}

// Submits them as answers to one prompt, and steps until all have ended.
inline std::vector<Transcript> run_forks(Engine& engine, std::vector<Request> requests) {
  std::vector<std::shared_ptr<Transcript>> transcripts;
  for (Request& request : requests) transcripts.push_back(record(request));
  const auto ids = engine.submit_forks(std::move(requests));
  CHECK(ids.ok() && ids->size() == transcripts.size());
  return step_until_ended(engine, transcripts);
}

// In an engine that computes everything itself.
inline Transcript run_alone(Model& model, const ops::Ctx& cx, EngineOptions options,
                            const Request& request) {
  options.prefix_caching = false;
  Engine engine(model, cx, options);
  return run_all(engine, {request})[0];
}

inline Transcript run_alone(const EngineOptions& options, const Request& request) {
  ToyModel model;
  return run_alone(model, {}, options, request);
}

}  // namespace nibble
