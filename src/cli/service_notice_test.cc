#include "cli/service_notice.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace nibble::cli {
namespace {

TEST(ServiceNotice, SendsOneDatagram) {
  unsetenv("NOTIFY_SOCKET");
  EXPECT_FALSE(notify_service("READY=1"));
  const std::string name = "@nibble_notice_" + std::to_string(getpid());
  setenv("NOTIFY_SOCKET", name.c_str(), 1);
  EXPECT_FALSE(notify_service("READY=1"));  // nobody listens
  const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::memcpy(address.sun_path + 1, name.data() + 1, name.size() - 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_TRUE(notify_service("READY=1"));
  char text[64];
  const ssize_t n = recv(fd, text, sizeof text, MSG_DONTWAIT);
  EXPECT_EQ(std::string(text, n > 0 ? static_cast<size_t>(n) : 0), "READY=1");
  close(fd);
  unsetenv("NOTIFY_SOCKET");
}

}  // namespace
}  // namespace nibble::cli
