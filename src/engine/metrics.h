// What the engine measures of requests and steps: the histograms that vLLM's /metrics has, by its
// names less "vllm:" and the unit.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include "engine/request.h"

namespace nibble {

using SteadyTime = std::chrono::steady_clock::time_point;

class Histogram {
 public:
  static constexpr size_t kMaxBounds = 24;
  // `bounds`: upper ones (a value on one is below it), ascending; must outlive the histogram.
  explicit Histogram(std::span<const double> bounds);
  void add(double value);

  std::span<const double> bounds() const { return bounds_; }
  // Values in (bounds[i - 1], bounds[i]]; i = bounds.size(): above all.
  int64_t count_in(size_t i) const { return counts_[i]; }
  int64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::array<int64_t, kMaxBounds + 1> counts_{};
  int64_t count_ = 0;
  double sum_ = 0;
};

// When a request reached each stage; the epoch where it has not.
struct RequestTimes {
  SteadyTime submitted;
  SteadyTime started;  // first admitted to a step
  SteadyTime first_token;
  SteadyTime last_token;
};

struct EngineMetrics {
  EngineMetrics();

  void on_token(RequestTimes& times, SteadyTime now);
  // Every request, however it ends; times and lengths of those that gave tokens.
  void on_end(const RequestTimes& times, FinishReason reason, int64_t num_prompt,
              int64_t num_generated, SteadyTime now);
  int64_t ended(FinishReason reason) const { return ended_[static_cast<size_t>(reason)]; }
  // When a client that found the queue full may ask again: once a quarter of `num_waiting` have
  // begun, at the pace at which requests end these days. 1 to 60 s.
  int32_t retry_after_s(int32_t num_waiting) const;

  Histogram time_to_first_token_s;
  Histogram inter_token_latency_s;
  Histogram e2e_request_latency_s;
  Histogram request_queue_time_s;      // submitted to started
  Histogram request_inference_time_s;  // started to ended
  Histogram request_prefill_time_s;    // started to first token
  Histogram request_decode_time_s;     // first token to last
  Histogram request_prompt_tokens;
  Histogram request_generation_tokens;
  Histogram request_params_max_tokens;
  Histogram request_params_n;
  Histogram iteration_tokens;  // of each step

 private:
  std::array<int64_t, kNumFinishReasons> ended_{};
  SteadyTime last_end_;
  double end_gap_s_ = 0;  // between ends, smoothed over some ten of them
};

}  // namespace nibble
