// Ranks that find each other over the loopback, among strangers; and what a watch tells of them.
#include "dist/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <map>
#include <mutex>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "dist/handshake.h"
#include "dist/tcp_comm.h"
#include "dist/test_ranks.h"
#include "dist/watch.h"

namespace nibble::dist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

const Identity kSame{"build", "model", "flags"};
constexpr seconds kWatchdog{120};  // no test lasts as long, unless what it waits for never comes

JoinOptions options_of(int rank, int size, uint16_t port) {
  return {.rank = rank,
          .size = size,
          .address = "127.0.0.1",
          .port = port,
          .key = "0123456789abcdef",
          .identity = kSame,
          .patience = kWatchdog};
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// All ranks of `size`, each with what it joined to.
std::vector<Joined> join_all(const Listener& listener, int size) {
  std::vector<std::future<Joined>> others;
  for (int r = size - 1; r > 0; --r)
    others.push_back(std::async(std::launch::async, [r, size, port = listener.port()] {
      return join_as_other(options_of(r, size, port));
    }));
  std::vector<Joined> all;
  all.push_back(join_as_first(listener, options_of(0, size, 0)));
  for (int r = 1; r < size; ++r) all.push_back(others[size - 1 - r].get());
  return all;
}

TEST(Bootstrap, EveryRankMeetsEveryOther) {
  for (const int size : {2, 3, 5}) {
    const Listener listener("127.0.0.1", 0);
    std::vector<Joined> joined = join_all(listener, size);
    std::vector<std::unique_ptr<TcpComm>> ranks;
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(joined[r].watch.size(), r == 0 ? size : 1u);
      ranks.push_back(std::make_unique<TcpComm>(r, std::move(joined[r].steps)));
    }
    on_every_rank(ranks, [&](TcpComm& comm) {
      const int mine = comm.rank();
      std::vector<int> all(size);
      comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
      for (int r = 0; r < size; ++r) EXPECT_EQ(all[r], r);
    });
  }
}

// Garbage, half a handshake, silence, a length of 4 GB, and ranks that do not fit: none of them is
// in the way of the right one.
TEST(Bootstrap, StrangersAreCutOff) {
  std::mutex mutex;
  std::string log;
  set_log_sink([&](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    log.append(line).append("\n");
  });
  const Listener listener("127.0.0.1", 0);
  const uint16_t port = listener.port();
  const auto stranger = [&](const std::string& says) {
    const Deadline deadline = std::chrono::steady_clock::now() + kWatchdog;
    Socket socket = connect_to("127.0.0.1", port, deadline, [] {});
    socket.send(std::as_bytes(std::span(says)), deadline);
    return socket;
  };
  JoinOptions host = options_of(0, 2, 0);
  host.time_to_authenticate = std::chrono::hours(24);  // who is silent is not waited for
  std::future<Joined> first =
      std::async(std::launch::async, [&] { return join_as_first(listener, host); });
  std::vector<Socket> strangers;
  strangers.push_back(stranger("GET / HTTP/1.1\r\nHost: me\r\n\r\n"));
  strangers.push_back(stranger(std::string("\x10\0\0\0nibp", 8)));
  strangers.push_back(stranger(""));
  strangers.push_back(stranger(std::string("\xff\xff\xff\xff", 4)));
  strangers.push_back(stranger(std::string("\x08\0\0\0nibp\x09\0\0\0", 12)));  // protocol 9
  JoinOptions other = options_of(1, 2, port);
  other.key = "another key, as long";
  EXPECT_THAT(error_of([&] { join_as_other(other); }), HasSubstr("does not know the key"));
  other = options_of(1, 2, port);
  other.identity.build = "another build";
  EXPECT_THAT(error_of([&] { join_as_other(other); }),
              HasSubstr("refused: its build is another: there \"another build\""));
  const Joined right = join_as_other(options_of(1, 2, port));
  EXPECT_TRUE(first.get().steps[1].is_open());
  set_log_sink({});
  EXPECT_THAT(log, HasSubstr("a message of 542393671 bytes"));  // "GET "
  EXPECT_THAT(log, HasSubstr("protocol 9 of ranks"));
  EXPECT_THAT(log, HasSubstr("rank 1 at 127.0.0.1 was refused: its build is another"));
}

// The others are told where the first one listens, which stays.
TEST(Bootstrap, TheSecondOfARankIsCutOff) {
  const Listener listener("127.0.0.1", 0);
  std::future<Joined> first =
      std::async(std::launch::async, [&] { return join_as_first(listener, options_of(0, 2, 0)); });
  const Deadline deadline = std::chrono::steady_clock::now() + kWatchdog;
  const auto call = [&](Purpose purpose, uint16_t port) {
    Socket socket = connect_to("127.0.0.1", listener.port(), deadline, [] {});
    JoinerHandshake handshake(options_of(1, 2, 0).key, kSame,
                              {.rank = 1, .size = 2, .purpose = purpose, .port = port},
                              random_nonce());
    const auto send = [&](const std::string& text) {
      send_frame(socket, std::as_bytes(std::span(text)), deadline);
    };
    send(handshake.hello());
    send(handshake.on_answer(receive_frame(socket, kMostHandshakeBytes, deadline)));
    handshake.on_welcome(receive_frame(socket, kMostHandshakeBytes, deadline));
    return socket;
  };
  const Socket calls[] = {call(Purpose::kSteps, 1111), call(Purpose::kSteps, 2222)};
  // Nothing is sent to anybody before all are there: what can be read is an end.
  pollfd ends[] = {{.fd = calls[0].fd(), .events = POLLIN, .revents = 0},
                   {.fd = calls[1].fd(), .events = POLLIN, .revents = 0}};
  ASSERT_EQ(poll(ends, 2, static_cast<int>(milliseconds(kWatchdog).count())), 1);
  const bool first_stays = ends[1].revents != 0;
  const Socket watch = call(Purpose::kWatch, 0);
  EXPECT_EQ(receive_frame(calls[first_stays ? 0 : 1], 100, deadline),
            first_stays ? "1111 127.0.0.1\n" : "2222 127.0.0.1\n");
  EXPECT_EQ(first.get().steps.size(), 2u);
}

TEST(Bootstrap, SaysWhoIsMissing) {
  const Listener listener("127.0.0.1", 0);
  JoinOptions options = options_of(0, 3, 0);
  options.patience = milliseconds(200);
  EXPECT_THAT(error_of([&] { join_as_first(listener, options); }),
              HasSubstr("ranks that did not come in time: 1, 2"));
  options = options_of(1, 2, 1);  // nobody there
  options.patience = milliseconds(200);
  EXPECT_THAT(error_of([&] { join_as_other(options); }), HasSubstr("nobody listens at 127.0.0.1"));
  options.check = [] { throw Error(ErrorKind::kUnsupported, "it ended"); };
  options.patience = kWatchdog;
  EXPECT_EQ(error_of([&] { join_as_other(options); }), "it ended");
}

TEST(Bootstrap, ListensAtAnAddressOfThisMachineAlone) {
  EXPECT_THAT(error_of([] { Listener("192.0.2.1", 0); }),
              HasSubstr("--master-addr 192.0.2.1 port 0 cannot be listened at"));
}

// ---- Watch ----

// What the Watch of rank 0 says of rank 1, whose end of the socket the test holds.
class Watched : public testing::Test {
 protected:
  void start(std::vector<Socket> peers) {
    watch_.emplace(std::move(peers), 0, [this](const std::string& why) { told_.set_value(why); });
  }
  std::string told(milliseconds within) {
    auto future = told_.get_future();
    if (future.wait_for(within) != std::future_status::ready) return "nothing";
    return future.get();
  }
  std::promise<std::string> told_;
  std::optional<Watch> watch_;
};

std::vector<Socket> peers_of(Socket one) {
  std::vector<Socket> peers(2);
  peers[1] = std::move(one);
  return peers;
}

TEST_F(Watched, TellsOfARankThatIsGone) {
  auto [here, there] = socket_pair();
  start(peers_of(std::move(here)));
  there = {};
  EXPECT_EQ(told(kWatchdog), "rank 1 is gone");
}

TEST_F(Watched, TellsOfARankThatIsSilent) {
  auto [here, there] = socket_pair();
  start(peers_of(std::move(here)));
  EXPECT_EQ(told(kWatchdog), "rank 1 has not been heard of for 2 seconds");
}

TEST_F(Watched, HearsHeartbeatsFaultsAndTheEnd) {
  auto [here, there] = socket_pair();
  start(peers_of(std::move(here)));
  std::promise<std::string> never;
  {
    std::vector<Socket> back(1);
    back[0] = std::move(there);
    Watch other(std::move(back), 0, [&](const std::string& why) { never.set_value(why); });
    std::this_thread::sleep_for(Watch::kSilence + milliseconds(500));
    other.announce("no memory is left");
    EXPECT_EQ(told(kWatchdog), "rank 1: no memory is left");
  }
}

TEST_F(Watched, ARankMayLeaveInGoodOrder) {
  auto [here, there] = socket_pair();
  start(peers_of(std::move(here)));
  std::vector<Socket> back(1);
  back[0] = std::move(there);
  std::optional<Watch> other(std::in_place, std::move(back), 0, [](const std::string&) {});
  other.reset();
  EXPECT_EQ(told(milliseconds(500)), "nothing");
}

TEST_F(Watched, WhatIsNoHeartbeatIsAFault) {
  for (const std::string& garbage :
       {std::string("x"), std::string("bbGET / HTTP"), std::string("f\xff\xff garbage", 11)}) {
    told_ = {};
    auto [here, there] = socket_pair();
    start(peers_of(std::move(here)));
    there.send_some(std::as_bytes(std::span(garbage)));
    EXPECT_EQ(told(kWatchdog), "rank 1 sends what is no heartbeat");
    watch_.reset();
  }
}

TEST_F(Watched, TheRestIsToldOfARankThatIsLost) {
  auto [to_one, one] = socket_pair();
  auto [to_two, two] = socket_pair();
  std::vector<Socket> peers(3);
  peers[1] = std::move(to_one), peers[2] = std::move(to_two);
  start(std::move(peers));
  std::promise<std::string> heard;
  std::vector<Socket> back(1);
  back[0] = std::move(two);
  Watch other(std::move(back), 0, [&](const std::string& why) { heard.set_value(why); });
  one = {};
  EXPECT_EQ(told(kWatchdog), "rank 1 is gone");
  EXPECT_EQ(heard.get_future().get(), "rank 1 is gone");
}

}  // namespace
}  // namespace nibble::dist
