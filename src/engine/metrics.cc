#include "engine/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace nibble {
namespace {

// vLLM's bounds, with finer ones below where a fast engine would have everything in the first.
constexpr double kFirstToken[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                  1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
constexpr double kToken[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                             0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
constexpr double kRequest[] = {0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,    10,
                               15,   20,   30,  40,  50,  60,  120, 240, 480, 960, 1920, 7680};
constexpr double kLength[] = {1,    2,    5,    10,    20,    50,    100,    200,    500,
                              1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};
constexpr double kStepTokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr double kChoices[] = {1, 2, 5, 10, 20};

double seconds(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds) : bounds_(bounds) {
  CHECK(bounds.size() <= kMaxBounds && std::ranges::is_sorted(bounds));
}

void Histogram::add(double value) {
  ++counts_[std::ranges::lower_bound(bounds_, value) - bounds_.begin()];
  ++count_;
  sum_ += value;
}

EngineMetrics::EngineMetrics()
    : time_to_first_token_s(kFirstToken),
      inter_token_latency_s(kToken),
      e2e_request_latency_s(kRequest),
      request_queue_time_s(kRequest),
      request_inference_time_s(kRequest),
      request_prefill_time_s(kRequest),
      request_decode_time_s(kRequest),
      request_prompt_tokens(kLength),
      request_generation_tokens(kLength),
      request_params_max_tokens(kLength),
      request_params_n(kChoices),
      iteration_tokens(kStepTokens) {}

void EngineMetrics::on_token(RequestTimes& times, SteadyTime now) {
  if (times.first_token == SteadyTime{}) {
    times.first_token = now;
    time_to_first_token_s.add(seconds(times.submitted, now));
  } else {
    inter_token_latency_s.add(seconds(times.last_token, now));
  }
  times.last_token = now;
}

void EngineMetrics::on_end(const RequestTimes& times, FinishReason reason, int64_t num_prompt,
                           int64_t num_generated, SteadyTime now) {
  ++ended_[static_cast<size_t>(reason)];
  if (last_end_ != SteadyTime{}) {  // time without requests is nobody's pace
    const double gap_s = seconds(std::max(last_end_, times.submitted), now);
    end_gap_s_ += 0.1 * (gap_s - end_gap_s_);
  }
  last_end_ = now;
  if (times.first_token == SteadyTime{}) return;
  e2e_request_latency_s.add(seconds(times.submitted, now));
  request_queue_time_s.add(seconds(times.submitted, times.started));
  request_inference_time_s.add(seconds(times.started, now));
  request_prefill_time_s.add(seconds(times.started, times.first_token));
  request_decode_time_s.add(seconds(times.first_token, times.last_token));
  request_prompt_tokens.add(static_cast<double>(num_prompt));
  request_generation_tokens.add(static_cast<double>(num_generated));
}

int32_t EngineMetrics::retry_after_s(int32_t num_waiting) const {
  return static_cast<int32_t>(std::clamp(std::ceil(end_gap_s_ * num_waiting / 4), 1.0, 60.0));
}

}  // namespace nibble
