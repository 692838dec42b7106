// Watch: heartbeats between rank 0 and the others, on sockets beside the steps' own. Tells within
// seconds of a rank that is gone, silent or in trouble; rank 0 passes that on to the rest.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dist/socket.h"

namespace nibble::dist {

class Watch {
 public:
  static constexpr std::chrono::milliseconds kBeat{200};
  static constexpr std::chrono::milliseconds kSilence{2000};

  // peers[i] leads to rank first_rank + i; those that are not open are left out. `on_lost` is
  // called once, on the Watch's thread, with a text that names the rank.
  Watch(std::vector<Socket> peers, int first_rank, std::function<void(const std::string&)> on_lost);
  // Says that this rank leaves in good order.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Says to all why this rank is about to end.
  void announce(const std::string& fault);

 private:
  struct Peer {
    int rank;
    Socket socket;
    std::string unread;
    std::chrono::steady_clock::time_point heard;
    bool has_left = false;
  };
  void run(const std::stop_token& stop);
  void look(Peer& peer);
  void parse(Peer& peer);
  void tell(const std::string& message);
  void lose(const std::string& why);

  std::mutex sending_;
  std::vector<Peer> peers_;
  std::function<void(const std::string&)> on_lost_;
  bool is_lost_ = false;
  std::jthread thread_;
};

}  // namespace nibble::dist
