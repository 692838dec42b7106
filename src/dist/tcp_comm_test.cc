#include "dist/tcp_comm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "base/error.h"
#include "dist/test_ranks.h"

namespace nibble::dist {
namespace {

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::vector<float> random_values(int rank, size_t n) {
  std::mt19937 random(static_cast<uint32_t>(1000 * n + rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& v : values) v = normal(random) * std::exp2(static_cast<float>(random() % 20));
  return values;
}

// Of any size, at once or in parts: the sum in order of ranks, to the bit, on every rank.
TEST(TcpComm, SumsInOrderOfRanks) {
  for (const int size : {1, 2, 3, 4, 8})
    for (const size_t n : {size_t{1}, size_t{7}, size_t{2880}, size_t{20'011}, size_t{300'000}}) {
      std::vector<float> want = random_values(0, n);
      for (int r = 1; r < size; ++r) {
        const std::vector<float> more = random_values(r, n);
        for (size_t i = 0; i < n; ++i) want[i] += more[i];
      }
      on_every_rank(test_ranks(size), [&](TcpComm& comm) {
        for (int again = 0; again < 2; ++again) {
          std::vector<float> values = random_values(comm.rank(), n);
          comm.all_reduce(values);
          EXPECT_EQ(std::memcmp(values.data(), want.data(), n * sizeof(float)), 0)
              << size << " ranks, " << n << " values, rank " << comm.rank();
        }
      });
    }
}

// A part of nothing, which a rank may have, is waited for by nobody.
TEST(TcpComm, NothingIsThereAtOnce) {
  on_every_rank(test_ranks(2), [](TcpComm& comm) {
    const int peer = 1 - comm.rank();
    int32_t mine = comm.rank(), got = -1;
    comm.send(peer, std::span<const std::byte>());
    comm.receive(peer, std::span<std::byte>());
    comm.send(peer, std::as_bytes(std::span(&mine, 1)));
    comm.receive(peer, std::as_writable_bytes(std::span(&got, 1)));
    EXPECT_EQ(got, peer);
  });
}

TEST(TcpComm, GathersInOrderOfRanks) {
  on_every_rank(test_ranks(3), [](TcpComm& comm) {
    const std::vector<int32_t> mine(5, comm.rank());
    std::vector<int32_t> all(15);
    comm.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
    for (int i = 0; i < 15; ++i) EXPECT_EQ(all[i], i / 5);
  });
}

TEST(TcpComm, SendsFromOneToOne) {
  on_every_rank(test_ranks(3), [](TcpComm& comm) {
    std::vector<int32_t> values(100'000, 5);
    const auto bytes = std::as_writable_bytes(std::span(values));
    if (comm.rank() == 1) comm.send(2, bytes);
    if (comm.rank() == 2) {
      values.assign(values.size(), 0);
      comm.receive(1, bytes);
      EXPECT_EQ(values, std::vector<int32_t>(100'000, 5));
    }
  });
}

// A call that waits ends when another thread says so, and all that follow, with the first text.
TEST(TcpComm, EndsWhenItIsAborted) {
  auto ranks = test_ranks(2);
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ranks[0]->abort("rank 1 is on fire");
    ranks[0]->abort("rank 1 is gone");
  });
  float value = 1;
  EXPECT_EQ(error_of([&] { ranks[0]->all_reduce({&value, 1}); }), "rank 1 is on fire");
  EXPECT_EQ(error_of([&] { ranks[0]->check(); }), "rank 1 is on fire");
  EXPECT_EQ(error_of([&] { ranks[0]->send(1, std::as_bytes(std::span(&value, 1))); }),
            "rank 1 is on fire");
}

TEST(TcpComm, SaysWhoIsGone) {
  auto ranks = test_ranks(3);
  ranks[2].reset();
  float value = 1;
  EXPECT_THAT(error_of([&] {
                ranks[0]->all_reduce({&value, 1});
              }),
              testing::StartsWith("rank 2: the connection"));
}

}  // namespace
}  // namespace nibble::dist
