// Interfaces as /sys/class/net shows them, in a folder of the test's own.
#include "dist/link_speed.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace nibble::dist {
namespace {

class LinkSpeed : public testing::Test {
 protected:
  LinkSpeed() { std::filesystem::create_directories(folder_); }
  ~LinkSpeed() override { std::filesystem::remove_all(folder_); }
  void add(const std::string& name, const std::string& state, const std::string& speed,
           bool is_real = true) {
    std::filesystem::create_directories(folder_ / name / (is_real ? "device" : "bridge"));
    std::ofstream(folder_ / name / "operstate") << state << "\n";
    std::ofstream(folder_ / name / "speed") << speed << "\n";
    others_.push_back(name);
  }
  std::string faster(const std::string& interface) {
    return faster_interface(interface, others_, folder_);
  }
  std::vector<std::string> others_;  // all that were added
  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("links-" + std::to_string(getpid()));
};

TEST_F(LinkSpeed, TheFastestThatIsPluggedInIsFound) {
  add("eth0", "up", "1000");
  EXPECT_EQ(link_speed("eth0", folder_), 1000);
  EXPECT_EQ(faster("eth0"), "");
  add("eth1", "up", "2500");
  add("fast0", "up", "100000");
  add("fast1", "up", "200000");
  add("fast2", "down", "400000");
  add("docker0", "up", "800000", /*is_real=*/false);
  EXPECT_EQ(faster("eth0"), "fast1");
  EXPECT_EQ(faster("fast0"), "");
  std::erase(others_, "fast1");  // without an address nobody is reached by it
  EXPECT_EQ(faster("eth0"), "fast0");
  add("wlan0", "up", "");
  std::filesystem::create_directories(folder_ / "wlan0/wireless");
  EXPECT_EQ(faster("wlan0"), "fast0");
}

TEST_F(LinkSpeed, LoopbackHasAnAddress) {
  const std::vector<std::string> names = interfaces_with_addresses();
  EXPECT_NE(std::ranges::find(names, "lo"), names.end());
}

TEST_F(LinkSpeed, WhatDoesNotSayIsNotJudged) {
  add("wlan0", "up", "");
  add("down0", "down", "-1");
  add("fast0", "up", "200000");
  for (const char* name : {"wlan0", "down0", "lo", "none"}) {
    EXPECT_EQ(link_speed(name, folder_), 0) << name;
    EXPECT_EQ(faster(name), "") << name;
  }
  EXPECT_EQ(faster_interface("fast0", others_, folder_ / "none"), "");
}

}  // namespace
}  // namespace nibble::dist
