// Bootstrap: how the ranks of a run find each other. Rank 0 listens; the others call it, twice each
// (for steps, and for heartbeats), and learn from it where those behind them listen. Who does not
// get through a handshake in time is cut off; once all are there nobody listens any more.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "dist/handshake.h"
#include "dist/socket.h"

namespace nibble::dist {

struct JoinOptions {
  int rank = 0;
  int size = 1;
  std::string address;  // rank 0's, which it listens at
  uint16_t port = 0;
  std::string key;
  Identity identity;
  std::chrono::milliseconds patience{0};          // until all are there
  std::chrono::seconds time_to_authenticate{10};  // of a caller
  std::function<void()> check = [] {};            // called while others are waited for; may throw
};

struct Joined {
  std::vector<Socket> steps;  // by rank; none to itself
  std::vector<Socket> watch;  // the same of rank 0; of others, to rank 0 alone
};

// As rank 0, which already listens so that whoever starts the others knows the port. A stranger or
// a rank that does not fit is logged, told why if it knows the key, and cut off. Throws Error where
// ranks are missing in the end.
Joined join_as_first(const Listener& listener, const JoinOptions& options);
// As any other rank. Throws Error where rank 0 is not there, or refuses.
Joined join_as_other(const JoinOptions& options);

}  // namespace nibble::dist
