// SIGINT and SIGTERM as something to wait for. The first asks for an orderly end, the second ends
// the program at once.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace nibble::cli {

class ShutdownSignals {
 public:
  // Before any other thread is started: they inherit the mask.
  ShutdownSignals();
  ~ShutdownSignals();

  // While nothing is to be saved (loading): the first signal ends the program too.
  void exit_at_once(bool on) { exit_at_once_ = on; }
  // True: a signal has come.
  bool wait(std::chrono::milliseconds timeout);

 private:
  void run();

  std::atomic<bool> exit_at_once_{true};
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::condition_variable came_;
  bool asked_ = false;
  std::thread thread_;
};

}  // namespace nibble::cli
