// A few threads that take what would hold up the server's thread: parsing and tokenizing.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble::server {

class WorkQueue {
 public:
  WorkQueue(int threads, size_t max_waiting);
  ~WorkQueue();  // stop()

  // False: too much is waiting, or stop() was called; `work` is dropped.
  bool push(std::function<void()> work);
  // Finishes what runs, drops what waits.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
  const size_t max_waiting_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace nibble::server
