#include "engine/activity_log.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/log.h"

namespace nibble {
namespace {

constexpr std::chrono::seconds kEvery{10};
// A step that took that long says more of an idle engine than of a slow one.
constexpr std::chrono::seconds kIdle{10};

SteadyTime::duration interval() {
  const char* const text = std::getenv("NIBBLE_LOG_STATS_INTERVAL");
  if (text == nullptr) return kEvery;
  char* end = nullptr;
  const double s = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(s >= 0.1 && s <= 86'400))
    throw Error(ErrorKind::kUsage, "NIBBLE_LOG_STATS_INTERVAL=" + std::string(text) +
                                       ": expected seconds, from 0.1 to 86400");
  return std::chrono::duration_cast<SteadyTime::duration>(std::chrono::duration<double>(s));
}

// Of the drafts since `before`; "" where nothing is ever drafted.
std::string speculation_text(const SpeculationCounts& now, const SpeculationCounts& before) {
  if (now.num_places == 0) return "";
  const SpeculationCounts since = now - before;
  char text[128];
  std::snprintf(text, sizeof text,
                ", Mean acceptance length %.2f, %lld of %lld drafted tokens accepted",
                since.mean_acceptance_length(), static_cast<long long>(since.num_accepted_tokens),
                static_cast<long long>(since.num_draft_tokens));
  return text;
}

}  // namespace

ActivityLog::ActivityLog() : every_(interval()) {}

void ActivityLog::start(const EngineStats& stats, SteadyTime now) {
  since_ = now;
  prompt_tokens_ = stats.prompt_tokens;
  generation_tokens_ = stats.generation_tokens;
  prefix_queries_ = stats.prefix_cache_queries;
  prefix_hits_ = stats.prefix_cache_hits;
  speculation_ = stats.speculation;
}

void ActivityLog::after_step(const EngineStats& stats, SteadyTime now) {
  const bool was_idle = now - last_step_ > kIdle;
  last_step_ = now;
  if (was_idle) return start(stats, now);
  if (now - since_ < every_) return;
  const double s = std::chrono::duration<double>(now - since_).count();
  const auto rate = [s](int64_t from, int64_t to) { return static_cast<double>(to - from) / s; };
  const int64_t queries = stats.prefix_cache_queries - prefix_queries_;
  const int64_t hits = stats.prefix_cache_hits - prefix_hits_;
  LOG_INFO(
      "prompt %.1f tokens/s, generation %.1f tokens/s, running %d, waiting %d, KV cache %.1f%%, "
      "prefix-cache hits %.1f%%, preemptions %lld%s",
      rate(prompt_tokens_, stats.prompt_tokens), rate(generation_tokens_, stats.generation_tokens),
      stats.num_running, stats.num_waiting, 100 * stats.kv_usage,
      queries > 0 ? 100.0 * static_cast<double>(hits) / static_cast<double>(queries) : 0.0,
      static_cast<long long>(stats.num_preemptions),
      speculation_text(stats.speculation, speculation_).c_str());
  start(stats, now);
}

}  // namespace nibble
