#include "dist/watch.h"

#include <poll.h>

#include <algorithm>

#include "base/error.h"

namespace nibble::dist {
namespace {

using Clock = std::chrono::steady_clock;

// A message is one of these bytes; behind kFault stands a length of two bytes and a text.
constexpr char kBeatByte = 'b', kFault = 'f', kEnd = 'e';
constexpr size_t kMostFault = 1000;

std::string fault_message(std::string_view text) {
  text = text.substr(0, kMostFault);
  std::string message{kFault, static_cast<char>(text.size() & 0xff),
                      static_cast<char>(text.size() >> 8)};
  return message.append(text);
}

std::string name_of(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

Watch::Watch(std::vector<Socket> peers, int first_rank,
             std::function<void(const std::string&)> on_lost)
    : on_lost_(std::move(on_lost)) {
  for (size_t i = 0; i < peers.size(); ++i)
    if (peers[i].is_open())
      peers_.push_back({first_rank + static_cast<int>(i), std::move(peers[i]), "", Clock::now()});
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Watch::~Watch() {
  thread_.request_stop();
  thread_.join();
  tell({kEnd});
}

void Watch::announce(const std::string& fault) { tell(fault_message(fault)); }

// What does not go at once stays behind: the socket of one who listens is empty.
void Watch::tell(const std::string& message) {
  const std::lock_guard lock(sending_);
  for (const Peer& peer : peers_) {
    try {
      peer.socket.send_some(std::as_bytes(std::span(message)));
    } catch (const Error&) {
      continue;  // look() finds out
    }
  }
}

void Watch::lose(const std::string& why) {
  if (is_lost_) return;
  is_lost_ = true;
  announce(why);
  on_lost_(why);
}

void Watch::parse(Peer& peer) {
  while (!peer.unread.empty() && !is_lost_) {
    const char kind = peer.unread[0];
    size_t used = 1;
    if (kind == kFault) {
      if (peer.unread.size() < 3) return;
      const size_t length = static_cast<uint8_t>(peer.unread[1]) |
                            static_cast<size_t>(static_cast<uint8_t>(peer.unread[2])) << 8;
      if (length > kMostFault) return lose(name_of(peer.rank) + " sends what is no heartbeat");
      if (peer.unread.size() < 3 + length) return;
      used += 2 + length;
      const std::string text = peer.unread.substr(3, length);
      // Rank 0 says of whom it speaks.
      return lose(text.starts_with("rank ") ? text : name_of(peer.rank) + ": " + text);
    }
    if (kind == kEnd)
      peer.has_left = true;
    else if (kind != kBeatByte)
      return lose(name_of(peer.rank) + " sends what is no heartbeat");
    peer.unread.erase(0, used);
  }
}

void Watch::look(Peer& peer) {
  try {
    char room[256];
    while (const size_t n = peer.socket.receive_some(std::as_writable_bytes(std::span(room)))) {
      peer.heard = Clock::now();
      peer.unread.append(room, n);
      parse(peer);
    }
  } catch (const Error&) {
    if (!peer.has_left) lose(name_of(peer.rank) + " is gone");
    peer.has_left = true;
    return;
  }
  if (peer.has_left || Clock::now() - peer.heard < kSilence) return;
  lose(name_of(peer.rank) + " has not been heard of for " +
       std::to_string(kSilence.count() / 1000) + " seconds");
}

void Watch::run(const std::stop_token& stop) {
  auto beaten = Clock::time_point{};
  while (!stop.stop_requested() && !is_lost_) {
    if (Clock::now() - beaten >= kBeat) tell({kBeatByte}), beaten = Clock::now();
    std::vector<pollfd> entries;
    for (const Peer& peer : peers_)
      if (!peer.has_left)
        entries.push_back({.fd = peer.socket.fd(), .events = POLLIN, .revents = 0});
    poll(entries.data(), entries.size(), static_cast<int>(kBeat.count() / 4));
    for (Peer& peer : peers_)
      if (!peer.has_left) look(peer);
  }
}

}  // namespace nibble::dist
