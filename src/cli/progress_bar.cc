#include "cli/progress_bar.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "io/memory.h"

namespace nibble::cli {
namespace {

constexpr std::chrono::milliseconds kRedrawAfter{100};
constexpr int64_t kWidth = 30;

}  // namespace

ProgressBar::ProgressBar(std::string title)
    : title_(std::move(title)), is_terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressBar::show(int64_t done_bytes, int64_t total_bytes) {
  const Clock::time_point now = Clock::now();
  const bool ends = done_bytes >= total_bytes;
  if (is_done_ || (!ends && (!is_terminal_ || now - drawn_ < kRedrawAfter))) return;
  drawn_ = now;
  is_done_ = ends;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::fprintf(stderr, "%s%s%s", is_terminal_ ? "\r" : "",
               line(title_, done_bytes, total_bytes, seconds).c_str(), ends ? "\n" : "");
}

std::string ProgressBar::line(const std::string& title, int64_t done_bytes, int64_t total_bytes,
                              double seconds) {
  const double part =
      total_bytes > 0 ? static_cast<double>(done_bytes) / static_cast<double>(total_bytes) : 1;
  const auto filled = static_cast<int64_t>(part * kWidth);
  char tail[64];
  std::snprintf(tail, sizeof tail, "] %3d%% of ", static_cast<int>(part * 100));
  std::string text = title + " [" + std::string(filled, '#') + std::string(kWidth - filled, '.') +
                     tail + format_size(total_bytes);
  if (seconds > 0) {
    std::snprintf(tail, sizeof tail, ", %.1f s, %.2f GB/s", seconds,
                  static_cast<double>(done_bytes) / seconds / 1e9);
    text += tail;
  }
  return text;
}

}  // namespace nibble::cli
