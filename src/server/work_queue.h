// A few threads that take what would hold up the server's thread: parsing and tokenizing. The
// smallest goes first, and one of them takes nothing large: nobody waits for what is.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble::server {

class WorkQueue {
 public:
  WorkQueue(int threads, size_t max_waiting);
  ~WorkQueue();  // stop()

  // False: too much is waiting, or stop() was called; `work` is dropped. `bytes`: how much it is
  // about. Work of the same size goes in turn. What it throws for want of memory ends it alone.
  bool push(size_t bytes, std::function<void()> work);
  // Finishes what runs, drops what waits.
  void stop();

 private:
  void run(size_t max_bytes);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::multimap<size_t, std::function<void()>> waiting_;
  const size_t max_waiting_;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace nibble::server
