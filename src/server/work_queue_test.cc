#include "server/work_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <new>

namespace nibble::server {
namespace {

constexpr size_t kSmall = 100, kLarge = 10 << 20;

TEST(WorkQueue, NobodyWaitsForWhatIsLarge) {
  WorkQueue queue(2, 100);
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  std::promise<void> large;
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(queue.push(kLarge, [&, i] {
      opened.wait();
      if (i == 7) large.set_value();
    }));
  }
  std::promise<void> small;
  EXPECT_TRUE(queue.push(kSmall, [&] { small.set_value(); }));
  small.get_future().wait();  // while none of the large ones is done
  gate.set_value();
  large.get_future().wait();
}

TEST(WorkQueue, TheSmallestGoesFirst) {
  WorkQueue queue(1, 100);
  std::promise<void> gate, done;
  EXPECT_TRUE(queue.push(0, [&] { gate.get_future().wait(); }));
  std::vector<size_t> order;
  for (const size_t bytes : {size_t{5}, kLarge, kSmall, size_t{6}, kSmall + 1}) {
    queue.push(bytes, [&, bytes] { order.push_back(bytes); });
  }
  queue.push(kLarge + 1, [&] { done.set_value(); });
  gate.set_value();
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector<size_t>{5, 6, kSmall, kSmall + 1, kLarge}));
}

TEST(WorkQueue, LivesThroughMissingMemory) {
  WorkQueue queue(1, 100);
  std::promise<void> done;
  queue.push(1, [] { throw std::bad_alloc(); });
  queue.push(2, [&] { done.set_value(); });
  done.get_future().wait();
}

TEST(WorkQueue, TakesSoManyAndNoMore) {
  WorkQueue queue(1, 2);
  std::promise<void> started, gate;
  queue.push(1, [&] {
    started.set_value();
    gate.get_future().wait();
  });
  started.get_future().wait();
  EXPECT_TRUE(queue.push(1, [] {}));
  EXPECT_TRUE(queue.push(1, [] {}));
  EXPECT_FALSE(queue.push(1, [] {}));
  gate.set_value();
  queue.stop();
  EXPECT_FALSE(queue.push(1, [] {}));
}

}  // namespace
}  // namespace nibble::server
