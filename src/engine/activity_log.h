// ActivityLog: while the engine is busy, one line every ten seconds, or as often as
// NIBBLE_LOG_STATS_INTERVAL says, that says what it does.
#pragma once

#include "engine/engine.h"

namespace nibble {

class ActivityLog {
 public:
  ActivityLog();  // throws Error where that is no interval
  // After every step. The line's rates are of the time since the one before, or since the engine
  // woke up.
  void after_step(const EngineStats& stats, SteadyTime now);

 private:
  void start(const EngineStats& stats, SteadyTime now);

  SteadyTime::duration every_;
  SteadyTime last_step_;
  SteadyTime since_;
  int64_t prompt_tokens_ = 0;  // at `since_`, as the others
  int64_t generation_tokens_ = 0;
  int64_t prefix_queries_ = 0;
  int64_t prefix_hits_ = 0;
  SpeculationCounts speculation_;
};

}  // namespace nibble
