// ProgressBar: one line on standard error that fills up while bytes are read.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace nibble::cli {

class ProgressBar {
 public:
  explicit ProgressBar(std::string title);

  // Draws at most ten times a second, and when done; on what is no terminal, only then.
  void show(int64_t done_bytes, int64_t total_bytes);

  // The line of show(), without carriage return.
  static std::string line(const std::string& title, int64_t done_bytes, int64_t total_bytes,
                          double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  std::string title_;
  bool is_terminal_;
  bool is_done_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_;
};

}  // namespace nibble::cli
