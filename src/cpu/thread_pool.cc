#include "cpu/thread_pool.h"

#include <chrono>
#include <string>
#include <system_error>

#include "base/check.h"
#include "base/error.h"

namespace nibble::cpu {
namespace {

// Long enough to bridge the gap between two ops, short enough not to burn an idle machine.
constexpr auto kSpin = std::chrono::microseconds(50);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until done() or until kSpin has passed. Returns done().
template <typename Done>
bool spin(const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  while (true) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause();
    }
    if (std::chrono::steady_clock::now() > deadline) return done();
  }
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  CHECK(num_threads >= 1);
  try {
    for (int w = 1; w < num_threads; ++w) workers_.emplace_back([this, w] { work(w); });
  } catch (const std::system_error&) {
    join();
    throw Error(ErrorKind::kUsage, "the system refused to start " + std::to_string(num_threads) +
                                       " threads; say fewer with --threads");
  }
}

ThreadPool::~ThreadPool() { join(); }

void ThreadPool::join() {
  {
    std::lock_guard lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (std::thread& t : workers_) t.join();
}

void ThreadPool::dispatch(void (*call)(const void*, int), const void* job) {
  if (workers_.empty()) return call(job, 0);
  call_ = call;
  job_ = job;
  unfinished_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1);  // publishes call_ and job_; ordered before the read of sleeping_
  if (sleeping_.load() > 0) {
    std::lock_guard lock(mutex_);  // a worker about to sleep holds it until it waits
    wake_.notify_all();
  }
  call(job, 0);
  while (!spin([&] { return unfinished_.load(std::memory_order_acquire) == 0; }))
    std::this_thread::yield();
}

void ThreadPool::work(int worker) {
  uint64_t seen = 0;
  while (true) {
    const auto ready = [&] { return stop_.load() || generation_.load() != seen; };
    if (!spin(ready)) {
      std::unique_lock lock(mutex_);
      sleeping_.fetch_add(1);
      wake_.wait(lock, ready);
      sleeping_.fetch_sub(1);
    }
    if (stop_.load()) return;
    seen = generation_.load();
    call_(job_, worker);
    unfinished_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace nibble::cpu
