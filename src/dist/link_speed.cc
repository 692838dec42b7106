#include "dist/link_speed.h"

#include <fstream>

namespace nibble::dist {

int link_speed(const std::string& interface, const std::filesystem::path& folder) {
  const std::filesystem::path of = folder / interface;
  std::error_code none;
  std::string state;
  int speed = 0;
  if (!std::filesystem::exists(of / "device", none)) return 0;  // bridges, tunnels, loopback
  if (!(std::ifstream(of / "operstate") >> state) || state != "up") return 0;
  if (!(std::ifstream(of / "speed") >> speed) || speed < 0) return 0;
  return speed;
}

std::string faster_interface(const std::string& interface, const std::filesystem::path& folder) {
  constexpr int kTimes = 4;
  const int here = link_speed(interface, folder);
  std::string fastest;
  std::error_code none;
  if (here == 0) return fastest;
  int most = kTimes * here - 1;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    const int speed = link_speed(name, folder);
    if (speed <= most) continue;
    most = speed;
    fastest = name;
  }
  return fastest;
}

}  // namespace nibble::dist
