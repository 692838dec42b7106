// Interfaces as /sys/class/net shows them, in a folder of the test's own.
#include "dist/link_speed.h"

#include <gtest/gtest.h>
#include <unistd.h>

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
  }
  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("links-" + std::to_string(getpid()));
};

TEST_F(LinkSpeed, TheFastestThatIsPluggedInIsFound) {
  add("eth0", "up", "1000");
  EXPECT_EQ(link_speed("eth0", folder_), 1000);
  EXPECT_EQ(faster_interface("eth0", folder_), "");
  add("eth1", "up", "2500");
  add("fast0", "up", "100000");
  add("fast1", "up", "200000");
  add("fast2", "down", "400000");
  add("docker0", "up", "800000", /*is_real=*/false);
  EXPECT_EQ(faster_interface("eth0", folder_), "fast1");
  EXPECT_EQ(faster_interface("fast0", folder_), "");
}

TEST_F(LinkSpeed, WhatDoesNotSayIsNotJudged) {
  add("wlan0", "up", "");
  add("down0", "down", "-1");
  add("fast0", "up", "200000");
  for (const char* name : {"wlan0", "down0", "lo", "none"}) {
    EXPECT_EQ(link_speed(name, folder_), 0) << name;
    EXPECT_EQ(faster_interface(name, folder_), "") << name;
  }
  EXPECT_EQ(faster_interface("fast0", folder_ / "none"), "");
}

}  // namespace
}  // namespace nibble::dist
