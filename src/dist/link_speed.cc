#include "dist/link_speed.h"

#include <ifaddrs.h>
#include <netinet/in.h>

#include <fstream>
#include <memory>

namespace nibble::dist {

int link_speed(const std::string& interface, const std::filesystem::path& folder) {
  const std::filesystem::path of = folder / interface;
  std::error_code none;
  std::string state;
  int speed = 0;
  if (!std::filesystem::exists(of / "device", none)) return 0;  // bridges, tunnels, loopback
  if (!(std::ifstream(of / "operstate") >> state) || state != "up") return 0;
  if (std::ifstream(of / "speed") >> speed && speed > 0) return speed;
  constexpr int kWiFi = 1000;
  return std::filesystem::exists(of / "wireless", none) ? kWiFi : 0;
}

std::vector<std::string> interfaces_with_addresses() {
  std::vector<std::string> names;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return names;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr))
      continue;
    names.emplace_back(i->ifa_name);
  }
  return names;
}

std::string faster_interface(const std::string& interface, const std::vector<std::string>& others,
                             const std::filesystem::path& folder) {
  constexpr int kTimes = 4;
  const int here = link_speed(interface, folder);
  std::string fastest;
  if (here == 0) return fastest;
  int most = kTimes * here - 1;
  for (const std::string& name : others) {
    const int speed = link_speed(name, folder);
    if (speed <= most) continue;
    most = speed;
    fastest = name;
  }
  return fastest;
}

}  // namespace nibble::dist
