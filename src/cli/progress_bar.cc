#include "cli/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "io/memory.h"

namespace nibble::cli {
namespace {

constexpr std::chrono::milliseconds kRedrawAfter{100};
constexpr size_t kWidth = 30;
constexpr char kToEndOfLine[] = "\x1b[K";

// One less than the terminal has: a line that fills the last column moves some terminals on.
size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 0;
}

std::string speed(double bytes_per_second) {
  char text[32];
  const bool is_slow = bytes_per_second < 1e9;
  std::snprintf(text, sizeof text, is_slow ? "%.1f MB/s" : "%.2f GB/s",
                bytes_per_second / (is_slow ? 1e6 : 1e9));
  return text;
}

}  // namespace

ProgressBar::ProgressBar(std::string title)
    : title_(std::move(title)), is_terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressBar::show(int64_t done_bytes, int64_t total_bytes, int64_t old_bytes) {
  const Clock::time_point now = Clock::now();
  const bool ends = done_bytes >= total_bytes;
  if (is_done_ || (!ends && (!is_terminal_ || now - drawn_ < kRedrawAfter))) return;
  drawn_ = now;
  is_done_ = ends;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::fprintf(stderr, "%s%s%s%s", is_terminal_ ? "\r" : "",
               line(title_, done_bytes, total_bytes, seconds, done_bytes - old_bytes,
                    is_terminal_ ? terminal_columns() : 0)
                   .c_str(),
               is_terminal_ ? kToEndOfLine : "", ends ? "\n" : "");
}

std::string ProgressBar::line(const std::string& title, int64_t done_bytes, int64_t total_bytes,
                              double seconds, int64_t new_bytes, size_t columns) {
  const double part =
      total_bytes > 0 ? static_cast<double>(done_bytes) / static_cast<double>(total_bytes) : 1;
  char text[64];
  std::snprintf(text, sizeof text, "%3d%% of ", static_cast<int>(part * 100));
  std::string tail = text + format_size(total_bytes);
  if (seconds > 0) {
    std::snprintf(text, sizeof text, ", %.1f s, ", seconds);
    tail += text + speed(static_cast<double>(new_bytes) / seconds);
  }
  constexpr size_t kLeastWidth = 10, kFrame = 4;  // " [" and "] "
  const size_t room =
      columns == 0 ? kWidth : columns - std::min(columns, title.size() + kFrame + tail.size());
  if (room < kLeastWidth) {
    const std::string whole = title + " " + tail;
    return whole.size() <= columns ? whole : tail.substr(0, columns);
  }
  const size_t width = std::min(room, kWidth);
  const auto filled = static_cast<size_t>(part * static_cast<double>(width));
  return title + " [" + std::string(filled, '#') + std::string(width - filled, '.') + "] " + tail;
}

}  // namespace nibble::cli
