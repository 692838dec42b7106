// What has happened, for Prometheus: text format 0.0.4. What the engine measures stands under
// nibble's own name and under that which vLLM has for it, so that dashboards, gateways and
// autoscalers made for vLLM work. Used on the server's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace nibble::server {

// What only the server knows.
class ServerMetrics {
 public:
  void rejected() { ++rejected_; }  // 429
  void client_left() { ++left_; }   // before its answer was complete
  // `handler`: a route's path, or "other".
  void answered(std::string_view handler, std::string_view method, int status);

  struct Gauges {
    EngineStats engine;
    int32_t max_model_len = 0;
    int64_t kv_tokens = 0;
    int32_t state_slots = 0;
    size_t connections = 0;
    std::string model;  // the name that is shown
  };
  std::string text(const Gauges& now) const;

 private:
  std::map<std::string, int64_t> answered_;  // by labels
  int64_t rejected_ = 0;
  int64_t left_ = 0;
};

// Of this program, as the operating system counts: bytes, seconds, files.
struct ProcessStats {
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  double cpu_seconds = 0;
  int64_t open_fds = 0;
  int64_t max_fds = 0;
  double start_time = 0;  // since 1970; of the first call
};
ProcessStats process_stats();

}  // namespace nibble::server
