#include "cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/error.h"

namespace nibble::cpu {
namespace {

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int64_t n : {0, 1, 2, 7, 64, 1000})
      for (int64_t grain : {1, 16}) {
        std::vector<std::atomic<int>> hits(n);
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int worker) {
          EXPECT_LT(worker, threads);
          EXPECT_EQ(begin % grain, 0);
          for (int64_t i = begin; i < end; ++i) ++hits[i];
        });
        for (auto& hit : hits) ASSERT_EQ(hit, 1);
        for (auto& hit : hits) hit = 0;
        pool.parallel_tasks(n, [&](int64_t task, int) { ++hits[task]; });
        for (auto& hit : hits) ASSERT_EQ(hit, 1);
        for (auto& hit : hits) hit = 0;
        pool.parallel_blocks(n, [&](int64_t begin, int64_t end, int worker) {
          EXPECT_LT(worker, threads);
          EXPECT_LE(end - begin, std::max<int64_t>(1, (n - begin) / (2 * threads)));
          for (int64_t i = begin; i < end; ++i) ++hits[i];
        });
        for (auto& hit : hits) ASSERT_EQ(hit, 1);
      }
  }
}

TEST(ThreadPool, WorkersSleepAndWakeBetweenLoops) {
  ThreadPool pool(4);
  std::atomic<int64_t> sum{0};
  for (int round = 0; round < 200; ++round) {
    // Now at once, now long after the workers have gone to sleep.
    if (round % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.parallel_for(100, 1, [&](int64_t begin, int64_t end, int) { sum += end - begin; });
  }
  EXPECT_EQ(sum, 200 * 100);
}

TEST(ThreadPool, TheSameWorkerMeetsTheSamePart) {
  ThreadPool pool(3);
  std::vector<int> owner(99, -1), again(99, -1);
  for (auto* to : {&owner, &again})
    pool.parallel_for(99, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; ++i) (*to)[i] = worker;
    });
  EXPECT_EQ(owner, again);
}

// Each thread's stack takes address space: 1,000 of them do not fit into 1 GiB.
[[noreturn]] void start_too_many() {
  const rlimit limit{1 << 30, 1 << 30};
  setrlimit(RLIMIT_AS, &limit);
  try {
    ThreadPool pool(1000);
  } catch (const Error& e) {
    std::exit(e.kind() == ErrorKind::kUsage ? 0 : 2);
  }
  std::exit(1);
}

// qemu's user mode takes a limit on address space and forgets it.
bool can_limit_address_space() {
  rlimit before{}, after{};
  getrlimit(RLIMIT_AS, &before);
  rlimit lower = before;
  lower.rlim_cur = std::min<rlim_t>(before.rlim_cur, rlim_t{1} << 46) - 4096;
  setrlimit(RLIMIT_AS, &lower);
  getrlimit(RLIMIT_AS, &after);
  setrlimit(RLIMIT_AS, &before);
  return after.rlim_cur == lower.rlim_cur;
}

TEST(ThreadPool, SaysWhenTheSystemHasNoRoom) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers reserve more address space than the limit";
#endif
  if (!can_limit_address_space()) GTEST_SKIP() << "address space has no limit here";
  EXPECT_EXIT(start_too_many(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace nibble::cpu
