#include "cpu/topology.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "cpu/isa.h"

namespace nibble::cpu {
namespace {

namespace fs = std::filesystem;

class Root : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("nibble_topology_" + std::to_string(getpid()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  fs::path root_;
};

TEST_F(Root, NoLimitWithoutFiles) { EXPECT_EQ(read_cores(root_).cgroup_cpus, 0); }

TEST_F(Root, V2TakesTheTightestAncestor) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(read_cores(root_).cgroup_cpus, 1.5);
  write("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(read_cores(root_).cgroup_cpus, 0.5);
}

TEST_F(Root, V1) {
  write("proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/docker/7\n1:name=systemd:/\n");
  write("sys/fs/cgroup/cpu,cpuacct/docker/7/cpu.cfs_quota_us", "200000\n");
  write("sys/fs/cgroup/cpu,cpuacct/docker/7/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read_cores(root_).cgroup_cpus, 2);
}

TEST(Cores, UsableIsTheLesser) {
  EXPECT_EQ((Cores{8, 0}.usable()), 8);
  EXPECT_EQ((Cores{8, 2.5}.usable()), 3);
  EXPECT_EQ((Cores{2, 64}.usable()), 2);
  EXPECT_EQ((Cores{8, 0.1}.usable()), 1);
  EXPECT_GE(read_cores().usable(), 1);
}

TEST(Isa, ForcedByName) {
  EXPECT_EQ(force_isa("auto"), detect_isa());
  EXPECT_EQ(force_isa("scalar"), Isa::kScalar);
  EXPECT_EQ(force_isa(isa_name(detect_isa())), detect_isa());
  EXPECT_THROW(force_isa("sse"), Error);
  const Isa other = supports(detect_isa(), Isa::kNeon) ? Isa::kAvx2 : Isa::kNeon;
  EXPECT_THROW(force_isa(isa_name(other)), Error);
  for (Isa isa = detect_isa(); isa != Isa::kScalar; isa = lower(isa))
    EXPECT_EQ(force_isa(isa_name(isa)), isa);
}

TEST(Isa, EachContainsTheLowerOnes) {
  EXPECT_TRUE(supports(Isa::kAmx, Isa::kAvx512Vnni));
  EXPECT_TRUE(supports(Isa::kAmx, Isa::kAvx2));
  EXPECT_TRUE(supports(Isa::kAvx512Bf16, Isa::kAvx512Vnni));
  EXPECT_FALSE(supports(Isa::kAmx, Isa::kAvx512Bf16));  // whose products are slow there
  EXPECT_TRUE(supports(Isa::kAvxVnni, Isa::kAvx2));
  EXPECT_TRUE(supports(Isa::kNeonDot, Isa::kNeon));
  EXPECT_TRUE(supports(Isa::kScalar, Isa::kScalar));
  EXPECT_FALSE(supports(Isa::kAvx512, Isa::kAvx512Vnni));
  EXPECT_FALSE(supports(Isa::kAvx512Vnni, Isa::kAvxVnni));  // AVX-VNNI is an encoding of its own
  EXPECT_FALSE(supports(Isa::kAvx512, Isa::kNeon));
  EXPECT_FALSE(supports(Isa::kNeon, Isa::kNeonDot));
}

}  // namespace
}  // namespace nibble::cpu
