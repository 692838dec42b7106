#include "server/work_queue.h"

#include <malloc.h>

#include <limits>
#include <new>
#include <utility>

#include "base/log.h"

namespace nibble::server {
namespace {

constexpr size_t kLargeBytes = 256 << 10;
constexpr size_t kTrimBytes = 1 << 20;  // what it was read with goes back to the system

}  // namespace

WorkQueue::WorkQueue(int threads, size_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < threads; ++i) {
    const size_t most = i == 0 && threads > 1 ? kLargeBytes : std::numeric_limits<size_t>::max();
    threads_.emplace_back([this, most] { run(most); });
  }
}

WorkQueue::~WorkQueue() { stop(); }

bool WorkQueue::push(size_t bytes, std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_ || waiting_.size() >= max_waiting_) return false;
    waiting_.emplace(bytes, std::move(work));
  }
  wake_.notify_all();
  return true;
}

void WorkQueue::stop() {
  std::multimap<size_t, std::function<void()>> dropped;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(waiting_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkQueue::run(size_t max_bytes) {
  for (;;) {
    std::function<void()> work;
    size_t bytes = 0;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] {
        return stopped_ || (!waiting_.empty() && waiting_.begin()->first <= max_bytes);
      });
      if (stopped_) return;
      bytes = waiting_.begin()->first;
      work = std::move(waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
    }
    try {
      work();
    } catch (const std::bad_alloc&) {
      LOG_WARN("a request was dropped: no memory is left for it");
    }
    work = nullptr;
    if (bytes > kTrimBytes) malloc_trim(0);
  }
}

}  // namespace nibble::server
