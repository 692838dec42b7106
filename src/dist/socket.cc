#include "dist/socket.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "base/error.h"

namespace nibble::dist {
namespace {

// Of data that nobody acknowledges: a cable that was pulled.
constexpr int kUnacknowledgedMs = 2000;
constexpr std::chrono::milliseconds kRetry{100};

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorKind::kUnsupported, what + ": " + std::strerror(errno));
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int wait_ms(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000));
}

bool wait_for(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int n = poll(&entry, 1, wait_ms(deadline));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) fail("waiting for a rank");
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
}

void require(int fd, short events, Deadline deadline) {
  if (wait_for(fd, events, deadline)) return;
  throw Error(ErrorKind::kUnsupported, "the other side is silent");
}

void set_options(int fd) {
  const int on = 1, ms = kUnacknowledgedMs;  // no-ops where it is no TCP
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& address, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0)
    throw Error(ErrorKind::kUsage, "--master-addr " + address + ": " + gai_strerror(code));
  return {found, &freeaddrinfo};
}

std::string text_of(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), nullptr, 0,
              NI_NUMERICHOST);
  return host;
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  fcntl(fd_, F_SETFD, FD_CLOEXEC);
  set_options(fd_);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

size_t Socket::send_some(std::span<const std::byte> bytes) const {
  const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (n >= 0) return static_cast<size_t>(n);
  if (would_block()) return 0;
  fail("the connection broke");
}

size_t Socket::receive_some(std::span<std::byte> bytes) const {
  const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), 0);
  if (n > 0 || bytes.empty()) return static_cast<size_t>(n);
  if (n == 0) throw Error(ErrorKind::kUnsupported, "the connection was closed");
  if (would_block()) return 0;
  fail("the connection broke");
}

void Socket::send(std::span<const std::byte> bytes, Deadline deadline) const {
  while (!bytes.empty()) {
    const size_t n = send_some(bytes);
    bytes = bytes.subspan(n);
    if (n == 0) require(fd_, POLLOUT, deadline);
  }
}

void Socket::receive(std::span<std::byte> bytes, Deadline deadline) const {
  while (!bytes.empty()) {
    const size_t n = receive_some(bytes);
    bytes = bytes.subspan(n);
    if (n == 0) require(fd_, POLLIN, deadline);
  }
}

void Socket::shut_down() const noexcept {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

std::string Socket::local_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
  return text_of(address, length);
}

std::string Socket::peer_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "?";
  return text_of(address, length);
}

std::string interface_of(const std::string& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    sockaddr_storage storage{};
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&storage, i->ifa_addr, length);
    if (text_of(storage, length) == address) return i->ifa_name;
  }
  return "";
}

Socket connect_to(const std::string& address, uint16_t port, Deadline deadline,
                  const std::function<void()>& check) {
  const Addresses found = resolve(address, port, 0);
  while (true) {
    for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
      const int fd = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol);
      if (fd < 0) continue;
      Socket socket(fd);
      const bool begun = ::connect(fd, a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS;
      const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      if (!begun || !wait_for(fd, POLLOUT, std::min(deadline, patience))) continue;
      int error = 0;
      socklen_t length = sizeof(error);
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
      if (error == 0) return socket;
      errno = error;
    }
    if (std::chrono::steady_clock::now() >= deadline)
      fail("nobody listens at " + address + " port " + std::to_string(port));
    check();
    std::this_thread::sleep_for(kRetry);
  }
}

Listener::Listener(const std::string& address, uint16_t port) {
  const Addresses found = resolve(address, port, AI_PASSIVE);
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    const int fd = ::socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (fd < 0) continue;
    Socket socket(fd);
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(fd, a->ai_addr, a->ai_addrlen) != 0 || ::listen(fd, SOMAXCONN) != 0) continue;
    socket_ = std::move(socket);
    return;
  }
  throw Error(ErrorKind::kUsage, "--master-addr " + address + " port " + std::to_string(port) +
                                     " cannot be listened at: " + std::strerror(errno) +
                                     "; say an address of rank 0's own");
}

uint16_t Listener::port() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::optional<Socket> Listener::accept(Deadline deadline) const {
  if (!wait_for(socket_.fd(), POLLIN, deadline)) return std::nullopt;
  const int fd = ::accept(socket_.fd(), nullptr, nullptr);
  if (fd < 0) return std::nullopt;  // gone again
  return Socket(fd);
}

void send_frame(const Socket& socket, std::span<const std::byte> bytes, Deadline deadline) {
  const auto size = static_cast<uint32_t>(bytes.size());
  socket.send(std::as_bytes(std::span(&size, 1)), deadline);
  socket.send(bytes, deadline);
}

std::string receive_frame(const Socket& socket, size_t most, Deadline deadline) {
  uint32_t size = 0;
  socket.receive(std::as_writable_bytes(std::span(&size, 1)), deadline);
  if (size > most)
    throw Error(ErrorKind::kUnsupported, "a message of " + std::to_string(size) + " bytes, where " +
                                             std::to_string(most) + " are the most");
  std::string bytes(size, '\0');
  socket.receive(std::as_writable_bytes(std::span(bytes)), deadline);
  return bytes;
}

}  // namespace nibble::dist
