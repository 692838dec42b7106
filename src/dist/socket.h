// Socket: a stream between two ranks. Every wait has a deadline; what goes wrong is thrown as
// Error.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace nibble::dist {

using Deadline = std::chrono::steady_clock::time_point;

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);  // owns it; makes it non-blocking
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void send(std::span<const std::byte> bytes, Deadline deadline) const;
  void receive(std::span<std::byte> bytes, Deadline deadline) const;
  // What goes at once, 0 where nothing does. Throws where the other side has closed it.
  size_t send_some(std::span<const std::byte> bytes) const;
  size_t receive_some(std::span<std::byte> bytes) const;
  // From any thread: whoever waits on it, on either side, is told that it is over.
  void shut_down() const noexcept;

  std::string local_address() const;  // "10.0.0.1"
  std::string peer_address() const;

 private:
  int fd_ = -1;
};

// The network interface that has `address`: "eth0"; empty: none.
std::string interface_of(const std::string& address);

// Tries until `deadline`, as the other side may not listen yet; `check` is called in between, and
// may throw to give up.
Socket connect_to(const std::string& address, uint16_t port, Deadline deadline,
                  const std::function<void()>& check);

// Listens at one address of this machine, and at no other.
class Listener {
 public:
  // Port 0: any free one. Throws Error(kUsage) for an address that this machine does not have.
  Listener(const std::string& address, uint16_t port);
  uint16_t port() const;
  // None where nobody came until `deadline`.
  std::optional<Socket> accept(Deadline deadline) const;

 private:
  Socket socket_;
};

// Frames: a length of four bytes, then as many. One of more than `most` bytes is refused.
void send_frame(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline);
std::string receive_frame(const Socket& socket, size_t most, Deadline deadline);

}  // namespace nibble::dist
