// Load on an OpenAI server, and what came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/load_client.h"

namespace nibble::cli {

struct LoadPlan {
  LoadTarget target;
  std::string model;
  bool chat = true;         // else /completions
  int64_t requests = 100;   // in all
  double rate = 0;          // open loop: requests a second at random (Poisson); 0: closed loop
  int32_t concurrency = 8;  // closed loop: clients, each asks again once it is answered
  int32_t prompt_words = 100;
  int32_t shared_words = 0;  // of them, the first ones are the same in every request
  int32_t new_tokens = 128;
  bool ignore_eos = true;  // asks for all of new_tokens (an extension that vLLM and nibble have)
  uint64_t seed = 0;
  std::chrono::seconds timeout{600};
};

struct LoadResult {
  std::vector<Exchange> exchanges;  // in the order in which they were due
  double seconds = 0;               // from the first request to the last answer
};

// Runs it to the end. Requests that fail are in the result like the others.
LoadResult run_load(const LoadPlan& plan);

// The JSON body of request number `index`: the same for the same plan.
std::string request_body(const LoadPlan& plan, int64_t index);

// Limits of a good answer, in ms; nothing: no limit.
struct Goal {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> e2e_ms;
};
// "ttft:500,tpot:50,e2e:20000". Throws Error(kUsage).
Goal parse_goal(const std::string& text);

// In ms; linear between ranks, as NumPy has it. NaN where there are no values.
double percentile(std::vector<double> values, double percent);

struct LoadSummary {
  int64_t ok = 0, failed = 0, rejected = 0;  // rejected: 429 or 503, not counted as failed
  int64_t good = 0;                          // ok and within the goal
  int64_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;
  bool counted_by_server = true;  // else new_tokens are chunks
  double seconds = 0;
  std::vector<double> ttft_ms;  // of each answer
  std::vector<double> itl_ms;   // between chunks, of all answers
  std::vector<double> tpot_ms;  // of each answer of several tokens: its mean time per token
  std::vector<double> e2e_ms;
  std::string first_error;
};
LoadSummary summarize(const LoadResult& result, const Goal& goal);

}  // namespace nibble::cli
