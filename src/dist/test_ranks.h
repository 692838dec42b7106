// For tests: ranks of one process, over pairs of sockets, each to be used by a thread of its own.
#pragma once

#include <sys/socket.h>

#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "dist/tcp_comm.h"

namespace nibble::dist {

inline std::pair<Socket, Socket> socket_pair() {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
  return {Socket(fds[0]), Socket(fds[1])};
}

inline std::vector<std::unique_ptr<TcpComm>> test_ranks(int size) {
  std::vector<std::vector<Socket>> sockets(size);
  for (auto& of : sockets) of.resize(size);
  for (int a = 0; a < size; ++a)
    for (int b = a + 1; b < size; ++b) std::tie(sockets[a][b], sockets[b][a]) = socket_pair();
  std::vector<std::unique_ptr<TcpComm>> ranks;
  for (int r = 0; r < size; ++r)
    ranks.push_back(std::make_unique<TcpComm>(r, std::move(sockets[r])));
  return ranks;
}

// Runs `what` for each on a thread of its own. Where one throws, the others are ended, and it is
// thrown here.
inline void on_every_rank(const std::vector<std::unique_ptr<TcpComm>>& ranks,
                          const std::function<void(TcpComm&)>& what) {
  std::vector<std::exception_ptr> thrown(ranks.size());
  {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < ranks.size(); ++r)
      threads.emplace_back([&, r] {
        try {
          what(*ranks[r]);
        } catch (...) {
          thrown[r] = std::current_exception();
          for (const auto& rank : ranks) rank->abort("another rank failed");
        }
      });
  }
  for (const std::exception_ptr& e : thrown)
    if (e != nullptr) std::rethrow_exception(e);
}

}  // namespace nibble::dist
