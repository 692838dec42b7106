// A client for tests that sends bytes as they are and reads what comes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::server {

class RawClient {
 public:
  explicit RawClient(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~RawClient() { hang_up(); }
  RawClient(const RawClient&) = delete;

  // False: the other side has closed.
  bool send_bytes(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Reads until `end` is in what came, the connection ends, or nothing comes for a minute.
  std::string read_until(std::string_view end) {
    while (seen_.find(end) == std::string::npos && read_more()) {
    }
    const size_t at = seen_.find(end);
    const size_t n = at == std::string::npos ? seen_.size() : at + end.size();
    std::string part = seen_.substr(0, n);
    seen_.erase(0, n);
    return part;
  }
  std::string read_to_end() {
    while (read_more()) {
    }
    return std::exchange(seen_, {});
  }

  // One answer with a Content-Length: head and body.
  std::string read_answer() {
    std::string head = read_until("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    const size_t length = at == std::string::npos ? 0 : std::stoul(head.substr(at + 16));
    while (seen_.size() < length && read_more()) {
    }
    head += seen_.substr(0, length);
    seen_.erase(0, length);
    return head;
  }

  // Whether the other side closes within that time. What still comes is kept.
  bool closed_within(int milliseconds) {
    for (;;) {
      pollfd p{.fd = fd_, .events = POLLIN, .revents = 0};
      if (poll(&p, 1, milliseconds) <= 0) return false;
      if (!read_more()) return true;
    }
  }

  void hang_up() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  // Ends the connection by RST.
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    hang_up();
  }

 private:
  bool read_more() {
    pollfd p{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&p, 1, 60'000) <= 0) return false;
    char bytes[4096];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    seen_.append(bytes, static_cast<size_t>(n));
    return true;
  }

  int fd_;
  std::string seen_;
};

}  // namespace nibble::server
