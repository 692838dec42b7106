// How fast this machine's network interfaces are, as Linux says it: a link by a slow one is a
// mistake where a fast one is plugged in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace nibble::dist {

// Mb/s of a real interface ("eth0") that is up; 0: it is down, virtual, or does not say. Wi-Fi,
// which says nothing, is taken for 1,000. `folder` is laid out as /sys/class/net.
int link_speed(const std::string& interface,
               const std::filesystem::path& folder = "/sys/class/net");

// Those by which others may be reached: with an address beyond the link's own.
std::vector<std::string> interfaces_with_addresses();

// The fastest of `others` that is at least four times as fast as this one; "": none is known to be.
std::string faster_interface(const std::string& interface, const std::vector<std::string>& others,
                             const std::filesystem::path& folder = "/sys/class/net");

}  // namespace nibble::dist
