// ProgressBar: one line on standard error that fills up while bytes are read.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace nibble::cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string title);

  // Draws at most ten times a second, and when done; on what is no terminal, only then. `old_bytes`
  // of those done were there before and do not count for the speed.
  void show(int64_t done_bytes, int64_t total_bytes, int64_t old_bytes = 0);

  // The line of show(), without carriage return: where `columns` are not enough (0: no bound), the
  // bar gives way, then the title. `new_bytes` took `seconds`.
  static std::string line(const std::string& title, int64_t done_bytes, int64_t total_bytes,
                          double seconds, int64_t new_bytes, size_t columns = 0);

 private:
  using Clock = std::chrono::steady_clock;
  std::string title_;
  bool is_terminal_;
  bool is_done_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_;
};

}  // namespace nibble::cli
