#include "dist/tcp_comm.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/error.h"

namespace nibble::dist {
namespace {

using Clock = std::chrono::steady_clock;

// Up to so many bytes the way counts, beyond them what each rank sends.
constexpr size_t kAtOnceBytes = 64 << 10;
// Between two ops of a step an answer is near; then the processor is somebody else's.
constexpr std::chrono::microseconds kSpin{50};
// A rank whose heart beats and that sends nothing for so long hangs: no part of a step takes it.
constexpr std::chrono::seconds kStall{120};
// Who saw a connection close may be told why on another one.
constexpr std::chrono::milliseconds kWhy{200};

}  // namespace

TcpComm::TcpComm(int rank, std::vector<Socket> peers) : rank_(rank), peers_(std::move(peers)) {
  CHECK(rank >= 0 && rank < size());
}

void TcpComm::abort(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = why;
  }
  aborted_.notify_all();
  for (const Socket& peer : peers_) peer.shut_down();
}

void TcpComm::check() const {
  const std::lock_guard lock(mutex_);
  if (!why_.empty()) throw Error(ErrorKind::kUnsupported, why_);
}

void TcpComm::fail(int peer, const std::string& what) {
  {
    std::unique_lock lock(mutex_);
    aborted_.wait_for(lock, kWhy, [&] { return !why_.empty(); });
  }
  abort("rank " + std::to_string(peer) + ": " + what);
  check();
  std::abort();  // not reached: there is a text
}

bool TcpComm::advance(Transfer& t) {
  try {
    const Socket& socket = peers_[t.peer];
    size_t sent = 0, received = 0;
    if (!t.out.empty()) t.out = t.out.subspan(sent = socket.send_some(t.out));
    if (!t.in.empty()) t.in = t.in.subspan(received = socket.receive_some(t.in));
    return sent + received > 0;
  } catch (const Error& e) {
    fail(t.peer, e.what());
  }
}

// Until one of them can go on.
void TcpComm::wait(std::span<const Transfer> transfers) {
  std::vector<pollfd> entries;
  for (const Transfer& t : transfers)
    if (!t.is_done())
      entries.push_back({.fd = peers_[t.peer].fd(),
                         .events = static_cast<short>((t.out.empty() ? 0 : POLLOUT) |
                                                      (t.in.empty() ? 0 : POLLIN)),
                         .revents = 0});
  poll(entries.data(), entries.size(), 1000);
  check();
}

void TcpComm::run(std::span<Transfer> transfers) {
  check();
  auto last = Clock::now();
  while (true) {
    bool moved = false, done = true;
    for (Transfer& t : transfers) {
      if (!t.is_done()) moved = advance(t) || moved;
      done = done && t.is_done();
    }
    if (done) return;
    const auto now = Clock::now();
    if (moved)
      last = now;
    else if (now - last < kSpin)
      std::this_thread::yield();
    else if (now - last < kStall)
      wait(transfers);
    else
      fail(std::ranges::find_if(transfers, [](const auto& t) { return !t.is_done(); })->peer,
           "does not get on");
  }
}

void TcpComm::send(int to, std::span<const std::byte> bytes) {
  Transfer one{to, bytes, {}};
  run({&one, 1});
}

// Rank 0 may have nothing to do for hours: who waits for its next word waits for as long as hearts
// beat.
void TcpComm::receive(int from, std::span<std::byte> bytes) {
  Transfer one{from, {}, bytes};
  check();
  while (!one.is_done() && !advance(one)) wait({&one, 1});
  run({&one, 1});
}

void TcpComm::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  CHECK(all.size() == mine.size() * peers_.size());
  transfers_.clear();
  for (int r = 0; r < size(); ++r) {
    const auto part = all.subspan(r * mine.size(), mine.size());
    if (r == rank_)
      std::memmove(part.data(), mine.data(), mine.size());
    else
      transfers_.push_back({r, mine, part});
  }
  run(transfers_);
}

void TcpComm::all_reduce(std::span<float> values) {
  if (values.size_bytes() <= kAtOnceBytes || size() == 2)
    sum_at_once(values);
  else
    sum_in_parts(values);
}

void TcpComm::sum_at_once(std::span<float> values) {
  const size_t n = values.size();
  room_.resize(std::max(room_.size(), n * peers_.size()));
  const std::span all(room_.data(), n * peers_.size());
  all_gather(std::as_bytes(values), std::as_writable_bytes(all));
  std::copy_n(all.begin(), n, values.begin());
  for (int r = 1; r < size(); ++r)
    for (size_t i = 0; i < n; ++i) values[i] += all[r * n + i];
}

void TcpComm::sum_in_parts(std::span<float> values) {
  const size_t ranks = peers_.size(), each = (values.size() + ranks - 1) / ranks;
  const auto part = [&](size_t r) {
    const size_t begin = std::min(values.size(), r * each);
    return values.subspan(begin, std::min(values.size() - begin, each));
  };
  const std::span<float> mine = part(rank_);
  room_.resize(std::max(room_.size(), mine.size() * ranks));
  const auto from = [&](size_t r) { return std::span(&room_[r * mine.size()], mine.size()); };
  transfers_.clear();
  for (int r = 0; r < size(); ++r)
    if (r != rank_)
      transfers_.push_back({r, std::as_bytes(part(r)), std::as_writable_bytes(from(r))});
  run(transfers_);
  std::ranges::copy(mine, from(rank_).begin());
  std::ranges::copy(from(0), mine.begin());
  for (size_t r = 1; r < ranks; ++r)
    for (size_t i = 0; i < mine.size(); ++i) mine[i] += from(r)[i];
  transfers_.clear();
  for (int r = 0; r < size(); ++r)
    if (r != rank_) transfers_.push_back({r, std::as_bytes(mine), std::as_writable_bytes(part(r))});
  run(transfers_);
}

}  // namespace nibble::dist
