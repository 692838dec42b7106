// ThreadPool: workers that stay alive between loops. A loop allocates nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble::cpu {

class ThreadPool {
 public:
  // num_threads >= 1 counts the caller, who takes part in every loop. One caller at a time.
  // Throws Error(kUsage) where the system has no room for that many.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end, worker) on ranges that cover [0, n) once; worker is in [0, size()).
  // Static: worker w gets the w-th part, of about equal length and a multiple of `grain` (but for
  // the last), so that a worker meets the same memory in every loop over the same n.
  // The body must not throw and must not start another loop.
  template <typename Body>
  void parallel_for(int64_t n, int64_t grain, const Body& body) {
    const int64_t parts = size();
    const int64_t grains = (n + grain - 1) / grain;
    run([&](int worker) {
      const int64_t begin = grains * worker / parts * grain;
      const int64_t end = std::min(n, grains * (worker + 1) / parts * grain);
      if (begin < end) body(begin, end, worker);
    });
  }

  // Calls body(begin, end, worker) on ranges that cover [0, n) once, long ones first, then shorter
  // and shorter: a worker that is done takes half of its share of what is left. For blocks of
  // memory that are read in order, of any cost: at the end, workers wait for one block at most.
  template <typename Body>
  void parallel_blocks(int64_t n, const Body& body) {
    std::atomic<int64_t> next{0};
    run([&](int worker) {
      int64_t begin = next.load(std::memory_order_relaxed);
      while (begin < n) {
        const int64_t end = begin + std::max<int64_t>(1, (n - begin) / (2 * size()));
        if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
        body(begin, end, worker);
        begin = next.load(std::memory_order_relaxed);
      }
    });
  }

  // Calls body(task, worker) for each task in [0, n); workers take the next one when they are done.
  // For tasks of uneven cost.
  template <typename Body>
  void parallel_tasks(int64_t n, const Body& body) {
    std::atomic<int64_t> next{0};
    run([&](int worker) {
      for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < n;)
        body(task, worker);
    });
  }

 private:
  // Calls job(worker) once on every worker, the caller being worker 0.
  template <typename Job>
  void run(const Job& job) {
    dispatch([](const void* f, int worker) { (*static_cast<const Job*>(f))(worker); }, &job);
  }
  void dispatch(void (*call)(const void*, int), const void* job);
  void work(int worker);
  void join();

  std::vector<std::thread> workers_;
  void (*call_)(const void*, int) = nullptr;
  const void* job_ = nullptr;
  std::atomic<uint64_t> generation_{0};  // of the loop that call_ and job_ belong to
  std::atomic<int> unfinished_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace nibble::cpu
