#include "dist/bootstrap.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/log.h"

namespace nibble::dist {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{100};
constexpr int kMostAtOnce = 64;  // handshakes under way; further callers are cut off
constexpr size_t kMostAddresses = 1 << 20;

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

struct Arrived {
  Caller caller;
  Socket socket;
};

// The host's side. None where the caller does not belong here, which the log says.
std::optional<Caller> receive_caller(const Socket& socket, const JoinOptions& options) {
  const Deadline deadline = Clock::now() + options.time_to_authenticate;
  const std::string from = socket.peer_address();
  HostHandshake handshake(options.key, options.identity, static_cast<uint32_t>(options.size),
                          random_nonce());
  try {
    const std::string hello = receive_frame(socket, kMostHandshakeBytes, deadline);
    send_frame(socket, bytes(handshake.on_hello(hello)), deadline);
    const std::string proof = receive_frame(socket, kMostHandshakeBytes, deadline);
    send_frame(socket, bytes(handshake.on_proof(proof)), deadline);
  } catch (const Error& e) {
    LOG_WARN("ranks: a caller from %s was cut off: %s", from.c_str(), e.what());
    return std::nullopt;
  }
  if (!handshake.refusal().empty()) {
    LOG_ERROR("ranks: rank %u at %s was refused: %s", handshake.caller().rank, from.c_str(),
              handshake.refusal().c_str());
    return std::nullopt;
  }
  return handshake.caller();
}

Socket call(const std::string& address, uint16_t port, const JoinOptions& options,
            const Caller& caller, Deadline until) {
  Socket socket = connect_to(address, port, until, options.check);
  const Deadline deadline = Clock::now() + options.time_to_authenticate;
  JoinerHandshake handshake(options.key, options.identity, caller, random_nonce());
  try {
    send_frame(socket, bytes(handshake.hello()), deadline);
    const std::string answer = receive_frame(socket, kMostHandshakeBytes, deadline);
    send_frame(socket, bytes(handshake.on_answer(answer)), deadline);
    handshake.on_welcome(receive_frame(socket, kMostHandshakeBytes, deadline));
  } catch (const Error& e) {
    throw Error(ErrorKind::kUnsupported, "rank " + std::to_string(caller.rank) + " called " +
                                             address + " port " + std::to_string(port) + ": " +
                                             e.what());
  }
  return socket;
}

// Takes in callers, each on a thread, until nothing is missing. `take` is told of one at a time.
// Who has not shown by then who it is, is cut off.
class Door {
 public:
  Door(const Listener& listener, const JoinOptions& options, std::function<void(Arrived)> take)
      : listener_(listener), options_(options), take_(std::move(take)) {}
  ~Door() {
    const std::lock_guard lock(mutex_);
    for (const Guest& guest : guests_) guest.socket->shut_down();
  }
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  void wait(const std::function<std::string()>& missing, Deadline until) {
    while (true) {
      options_.check();
      {
        const std::lock_guard lock(mutex_);
        const std::string who = missing();
        if (who.empty()) return;
        if (Clock::now() >= until)
          throw Error(ErrorKind::kUnsupported, "ranks that did not come in time: " + who);
      }
      std::optional<Socket> socket = listener_.accept(Clock::now() + kLook);
      if (!socket || under_way_ >= kMostAtOnce) continue;
      const std::lock_guard lock(mutex_);
      std::erase_if(guests_, [](const Guest& guest) { return guest.is_done->load(); });
      let_in(std::move(*socket));
    }
  }

 private:
  struct Guest {
    std::shared_ptr<Socket> socket;
    std::shared_ptr<std::atomic<bool>> is_done;
    std::jthread thread;
  };
  void let_in(Socket from) {
    ++under_way_;
    const auto socket = std::make_shared<Socket>(std::move(from));
    const auto is_done = std::make_shared<std::atomic<bool>>(false);
    guests_.push_back({socket, is_done, std::jthread([this, socket, is_done] {
                         const std::optional<Caller> caller = receive_caller(*socket, options_);
                         const std::lock_guard lock(mutex_);
                         if (caller) take_({*caller, std::move(*socket)});
                         --under_way_;
                         *is_done = true;
                       })});
  }

  const Listener& listener_;
  const JoinOptions& options_;
  std::mutex mutex_;  // guards what take_ writes and `missing` reads, and guests' sockets
  std::function<void(Arrived)> take_;
  std::atomic<int> under_way_ = 0;
  std::vector<Guest> guests_;
};

// Puts a socket where it belongs; the second of a kind from one rank is cut off: false.
bool put(std::vector<Socket>& sockets, Arrived arrived) {
  Socket& to = sockets[arrived.caller.rank];
  if (to.is_open()) {
    LOG_WARN("ranks: a second rank %u was cut off", arrived.caller.rank);
    return false;
  }
  to = std::move(arrived.socket);
  return true;
}

std::string missing_of(const std::vector<Socket>& sockets, int first) {
  std::string who;
  for (size_t r = static_cast<size_t>(first); r < sockets.size(); ++r)
    if (!sockets[r].is_open()) who += (who.empty() ? "" : ", ") + std::to_string(r);
  return who;
}

}  // namespace

Joined join_as_first(const Listener& listener, const JoinOptions& options) {
  const Deadline until = Clock::now() + options.patience;
  Joined joined{std::vector<Socket>(options.size), std::vector<Socket>(options.size)};
  std::vector<std::string> addresses(options.size);  // "port address" of each
  Door door(listener, options, [&](Arrived arrived) {
    const Caller caller = arrived.caller;
    if (caller.purpose != Purpose::kSteps)
      put(joined.watch, std::move(arrived));
    else if (put(joined.steps, std::move(arrived)))
      addresses[caller.rank] =
          std::to_string(caller.port) + " " + joined.steps[caller.rank].peer_address();
  });
  door.wait([&] { return missing_of(joined.steps, 1) + missing_of(joined.watch, 1); }, until);
  std::string all;
  for (int r = 1; r < options.size; ++r) all += addresses[r] + "\n";
  for (int r = 1; r < options.size; ++r)
    send_frame(joined.steps[r], bytes(all), Clock::now() + options.time_to_authenticate);
  return joined;
}

Joined join_as_other(const JoinOptions& options) {
  const Deadline until = Clock::now() + options.patience;
  const auto rank = static_cast<uint32_t>(options.rank), size = static_cast<uint32_t>(options.size);
  Joined joined{std::vector<Socket>(options.size), std::vector<Socket>(1)};
  Caller caller{.rank = rank, .size = size, .purpose = Purpose::kWatch};
  joined.watch[0] = call(options.address, options.port, options, caller, until);
  // Those behind it call at the address that leads to rank 0, and at no other.
  const Listener listener(joined.watch[0].local_address(), 0);
  caller = {.rank = rank, .size = size, .purpose = Purpose::kSteps, .port = listener.port()};
  joined.steps[0] = call(options.address, options.port, options, caller, until);

  std::string all;
  try {
    all = receive_frame(joined.steps[0], kMostAddresses, until);
  } catch (const Error& e) {
    throw Error(ErrorKind::kUnsupported,
                std::string("rank 0, while others were waited for: ") + e.what());
  }
  size_t at = 0;
  caller.port = 0;
  for (int r = 1; r < options.rank; ++r) {
    const size_t space = all.find(' ', at), end = all.find('\n', at);
    if (space == std::string::npos || end == std::string::npos || space > end)
      throw Error(ErrorKind::kUnsupported, "rank 0 sent addresses that are none");
    const int port = std::atoi(all.substr(at, space - at).c_str());
    joined.steps[r] = call(all.substr(space + 1, end - space - 1), static_cast<uint16_t>(port),
                           options, caller, until);
    at = end + 1;
  }
  Door door(listener, options, [&](Arrived arrived) {
    if (arrived.caller.rank > rank) put(joined.steps, std::move(arrived));
  });
  door.wait([&] { return missing_of(joined.steps, options.rank + 1); }, until);
  return joined;
}

}  // namespace nibble::dist
