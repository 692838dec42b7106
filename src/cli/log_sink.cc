#include <poll.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "base/log.h"
#include "cli/cli.h"

namespace nibble::cli {

namespace {

// Whether a line can be written at once: nobody is to wait for a log that is not read.
bool takes_a_line() {
  pollfd fd{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&fd, 1, 0) == 1;
}

}  // namespace

void install_log_sink() {
  // No registry, no global logger: the sink owns it.
  auto logger = std::make_shared<spdlog::logger>(
      "nibble", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%H:%M:%S %^%l%$ %v");
  const char* given = std::getenv("NIBBLE_LOG");
  const std::string wanted = given ? given : "info";
  const auto level = spdlog::level::from_str(wanted);
  // An unknown word is "off" to spdlog.
  const bool known = level != spdlog::level::off || wanted == "off";
  logger->set_level(known ? level : spdlog::level::info);
  if (!known) logger->warn("NIBBLE_LOG={}: expected debug, info, warn, error or off", wanted);
  logger->flush_on(spdlog::level::info);
  set_log_sink([logger](LogLevel level, std::string_view text) {
    static std::mutex mutex;
    static int64_t lost = 0;
    const std::lock_guard lock(mutex);
    if (!takes_a_line()) {
      ++lost;
      return;
    }
    if (lost > 0) logger->warn("{} lines are missing here: nobody read the log", lost);
    lost = 0;
    static constexpr spdlog::level::level_enum kLevels[] = {
        spdlog::level::debug, spdlog::level::info, spdlog::level::warn, spdlog::level::err};
    logger->log(kLevels[static_cast<int>(level)], "{}", text);
  });
}

}  // namespace nibble::cli
