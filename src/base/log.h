// Log lines, printf style. cli/ installs a sink (spdlog); without one they go to stderr.
#pragma once

#include <functional>
#include <string_view>

namespace nibble {

enum class LogLevel { kDebug, kInfo, kWarn, kError };
using LogSink = std::function<void(LogLevel, std::string_view)>;

// Not thread-safe: call once at start-up. {}: to stderr again.
void set_log_sink(LogSink sink);

[[gnu::format(printf, 2, 3)]] void log(LogLevel level, const char* format, ...);

}  // namespace nibble

#define LOG_DEBUG(...) ::nibble::log(::nibble::LogLevel::kDebug, __VA_ARGS__)
#define LOG_INFO(...) ::nibble::log(::nibble::LogLevel::kInfo, __VA_ARGS__)
#define LOG_WARN(...) ::nibble::log(::nibble::LogLevel::kWarn, __VA_ARGS__)
#define LOG_ERROR(...) ::nibble::log(::nibble::LogLevel::kError, __VA_ARGS__)
