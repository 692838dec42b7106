#include "cli/shutdown_signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <ctime>

#include "base/log.h"

namespace nibble::cli {
namespace {

sigset_t both() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

ShutdownSignals::ShutdownSignals() {
  const sigset_t set = both();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);  // stderr may be a pipe that closes
  thread_ = std::thread([this] { run(); });
}

ShutdownSignals::~ShutdownSignals() {
  ended_ = true;
  thread_.join();
}

bool ShutdownSignals::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return came_.wait_for(lock, timeout, [this] { return asked_; });
}

void ShutdownSignals::run() {
  const sigset_t set = both();
  const timespec poll{.tv_sec = 0, .tv_nsec = 100'000'000};
  while (!ended_) {
    const int got = sigtimedwait(&set, nullptr, &poll);
    if (got < 0) continue;
    std::lock_guard lock(mutex_);
    if (exit_at_once_ || asked_) _exit(128 + got);
    LOG_INFO("signal %d: finishing what is under way; once more to end at once", got);
    asked_ = true;
    came_.notify_all();
  }
}

}  // namespace nibble::cli
