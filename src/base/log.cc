#include "base/log.h"

#include <cstdarg>
#include <cstdio>
#include <string>

namespace nibble {
namespace {

void to_stderr(LogLevel level, std::string_view text) {
  if (level == LogLevel::kDebug) return;
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

LogSink& sink() {
  static LogSink s = to_stderr;
  return s;
}

}  // namespace

void set_log_sink(LogSink s) { sink() = s ? std::move(s) : to_stderr; }

void log(LogLevel level, const char* format, ...) {
  va_list args;
  va_start(args, format);
  va_list counted;
  va_copy(counted, args);
  // NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang-tidy 14 loses sight of va_copy
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, counted)), '\0');
  va_end(counted);
  std::vsnprintf(text.data(), text.size() + 1, format, args);
  va_end(args);
  sink()(level, text);
}

}  // namespace nibble
