// TcpComm: ranks over sockets, one between each two. Small messages go to everybody at once, so
// that a sum takes one way; of large ones each rank sums a part, and hands it to the others.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "dist/socket.h"

namespace nibble::dist {

class TcpComm final : public Comm {
 public:
  // peers[r] leads to rank r; none to itself.
  TcpComm(int rank, std::vector<Socket> peers);
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  void all_reduce(std::span<float> values) override;
  void send(int to, std::span<const std::byte> bytes) override;
  void receive(int from, std::span<std::byte> bytes) override;

  // From any thread: the call that waits and all that come throw Error with this text. The first
  // text counts.
  void abort(const std::string& why);
  // What abort() said, thrown; else nothing.
  void check() const override;
  const std::vector<Socket>& peers() const { return peers_; }

 private:
  // Goes on between this rank and one other until both are through.
  struct Transfer {
    int peer;
    std::span<const std::byte> out;
    std::span<std::byte> in;
    bool is_done() const { return out.empty() && in.empty(); }
  };
  void run(std::span<Transfer> transfers);
  bool advance(Transfer& transfer);
  void wait(std::span<const Transfer> transfers);
  [[noreturn]] void fail(int peer, const std::string& what);
  void sum_at_once(std::span<float> values);
  void sum_in_parts(std::span<float> values);

  int rank_;
  std::vector<Socket> peers_;
  std::vector<Transfer> transfers_;
  std::vector<float> room_;  // of what others bring

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable aborted_;
  std::string why_;
};

}  // namespace nibble::dist
