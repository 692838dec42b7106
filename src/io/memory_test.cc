#include "io/memory.h"

#include <gmock/gmock.h>

#include "io/io_test.h"

namespace nibble {
namespace {

using test::error_of;
using test::TempDir;
using test::write_file;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = 1 << 30;

struct RuleCase {
  const char* what;
  MachineMemory machine;
  MemoryRule rule;
  int64_t total, reserve, budget;
};

TEST(MemoryBudget, FollowsTheRule) {
  const auto machine = [](int64_t total, int64_t available, std::optional<int64_t> limit = {},
                          std::optional<int64_t> left = {}) {
    return MachineMemory{.total_bytes = total,
                         .available_bytes = available,
                         .cgroup_limit_bytes = limit,
                         .cgroup_available_bytes = left};
  };
  const RuleCase cases[] = {
      {"the share binds",
       machine(100 * kGiB, 99 * kGiB),
       {.utilization = .5},
       100 * kGiB,
       5 * kGiB,
       50 * kGiB},
      {"what is available binds",
       machine(100 * kGiB, 60 * kGiB),
       {.utilization = .9},
       100 * kGiB,
       5 * kGiB,
       55 * kGiB},
      {"least reserve",
       machine(4 * kGiB, 4 * kGiB),
       {.utilization = 1},
       4 * kGiB,
       512 * kMiB,
       4 * kGiB - 512 * kMiB},
      {"least reserve where shared",
       machine(16 * kGiB, 16 * kGiB),
       {.utilization = 1, .shared_with_gpu = true},
       16 * kGiB,
       4 * kGiB,
       12 * kGiB},
      {"5% where shared and large",
       machine(120 * kGiB, 120 * kGiB),
       {.utilization = 1, .shared_with_gpu = true},
       120 * kGiB,
       6 * kGiB,
       114 * kGiB},
      {"a share of what is available where shared",
       machine(120 * kGiB, 60 * kGiB),
       {.utilization = .5, .shared_with_gpu = true},
       120 * kGiB,
       6 * kGiB,
       30 * kGiB},
      {"the host keeps its reserve where shared",
       machine(120 * kGiB, 60 * kGiB),
       {.utilization = .95, .shared_with_gpu = true},
       120 * kGiB,
       6 * kGiB,
       54 * kGiB},
      {"what is left in the cgroup binds where shared",
       machine(120 * kGiB, 100 * kGiB, 40 * kGiB, 30 * kGiB),
       {.utilization = .9, .shared_with_gpu = true},
       40 * kGiB,
       4 * kGiB,
       26 * kGiB},
      {"the cgroup's limit is the total",
       machine(100 * kGiB, 90 * kGiB, 20 * kGiB, 20 * kGiB),
       {.utilization = .5},
       20 * kGiB,
       kGiB,
       10 * kGiB},
      {"what is left in the cgroup binds",
       machine(100 * kGiB, 90 * kGiB, 20 * kGiB, 3 * kGiB),
       {.utilization = .9},
       20 * kGiB,
       kGiB,
       2 * kGiB},
      {"the machine is fuller than the cgroup",
       machine(100 * kGiB, 4 * kGiB, 20 * kGiB, 20 * kGiB),
       {.utilization = .9},
       20 * kGiB,
       kGiB,
       3 * kGiB},
      {"nothing left", machine(100 * kGiB, kGiB), {.utilization = .9}, 100 * kGiB, 5 * kGiB, 0},
      {"override",
       machine(100 * kGiB, 10 * kGiB),
       {.utilization = .9, .budget_bytes = 30 * kGiB},
       100 * kGiB,
       5 * kGiB,
       30 * kGiB},
  };
  for (const RuleCase& c : cases) {
    const MemoryBudget budget = memory_budget(c.machine, c.rule);
    EXPECT_EQ(budget.total_bytes, c.total) << c.what;
    EXPECT_EQ(budget.reserve_bytes, c.reserve) << c.what;
    EXPECT_EQ(budget.budget_bytes, c.budget) << c.what;
  }
}

TEST(MemoryBudget, RefusesFlagsThatMakeNoSense) {
  const MachineMemory machine{.total_bytes = kGiB, .available_bytes = kGiB};
  for (const double bad : {0., -1., 1.01, std::nan("")})
    EXPECT_THAT(error_of([&] { (void)memory_budget(machine, {.utilization = bad}); }),
                HasSubstr("--gpu-memory-utilization"));
  EXPECT_THAT(error_of([&] { (void)memory_budget(machine, {.budget_bytes = 2 * kGiB}); }),
              HasSubstr("--memory-budget 2.00 GiB: there are only 1.00 GiB"));
  const MachineMemory spark{.total_bytes = 120 * kGiB, .available_bytes = 60 * kGiB};
  const auto shared = [&](int64_t bytes) {
    return memory_budget(spark, {.budget_bytes = bytes, .shared_with_gpu = true}).budget_bytes;
  };
  EXPECT_EQ(shared(54 * kGiB), 54 * kGiB);
  EXPECT_THAT(
      error_of([&] { (void)shared(54 * kGiB + 1); }),
      AllOf(HasSubstr("60.00 GiB are available"), HasSubstr("6.00 GiB stay with the host")));
}

constexpr const char* kMeminfo =
    "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n";

TEST(MachineMemory, ReadsMeminfoAlone) {
  const TempDir root;
  write_file(root / "proc/meminfo", kMeminfo);
  const MachineMemory machine = read_machine_memory(root.path());
  EXPECT_EQ(machine.total_bytes, 16 * kGiB);
  EXPECT_EQ(machine.available_bytes, 8 * kGiB);
  EXPECT_FALSE(machine.cgroup_limit_bytes.has_value());
  write_file(root / "proc/meminfo", "MemTotal: 1 kB\n");
  EXPECT_THAT(error_of([&] { read_machine_memory(root.path()); }), HasSubstr("MemAvailable"));
}

// The limit of an ancestor binds, and page cache counts as free.
TEST(MachineMemory, WalksUpCgroupV2) {
  const TempDir root;
  write_file(root / "proc/meminfo", kMeminfo);
  write_file(root / "proc/self/cgroup", "0::/a/b\n");
  write_file(root / "sys/fs/cgroup/a/b/memory.max", "max\n");
  write_file(root / "sys/fs/cgroup/a/memory.max", std::to_string(4 * kGiB) + "\n");
  write_file(root / "sys/fs/cgroup/a/memory.current", std::to_string(3 * kGiB) + "\n");
  write_file(root / "sys/fs/cgroup/a/memory.stat",
             "anon 5\ninactive_file " + std::to_string(2 * kGiB) + "\n");
  const MachineMemory machine = read_machine_memory(root.path());
  EXPECT_EQ(machine.cgroup_limit_bytes, 4 * kGiB);
  EXPECT_EQ(machine.cgroup_available_bytes, 3 * kGiB);
}

// Inside a container the group's path is the host's, and the mount is the group itself.
TEST(MachineMemory, ReadsCgroupV1OfAContainer) {
  const TempDir root;
  write_file(root / "proc/meminfo", kMeminfo);
  write_file(root / "proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/docker/0123\n0::/\n");
  write_file(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(2 * kGiB));
  write_file(root / "sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(kGiB));
  write_file(root / "sys/fs/cgroup/memory/memory.stat",
             "inactive_file 1\ntotal_inactive_file " + std::to_string(kGiB / 2) + "\n");
  const MachineMemory machine = read_machine_memory(root.path());
  EXPECT_EQ(machine.cgroup_limit_bytes, 2 * kGiB);
  EXPECT_EQ(machine.cgroup_available_bytes, kGiB + kGiB / 2);
  // "No limit" of version 1.
  write_file(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_FALSE(read_machine_memory(root.path()).cgroup_limit_bytes.has_value());
}

TEST(MachineMemory, ReadsThisMachine) {
  const MachineMemory machine = read_machine_memory();
  EXPECT_GT(machine.available_bytes, 0);
  EXPECT_LE(machine.available_bytes, machine.total_bytes);
}

TEST(RequireMemory, SaysWhatWouldFit) {
  const MemoryBudget budget =
      memory_budget({.total_bytes = 32 * kGiB, .available_bytes = 30 * kGiB}, {.utilization = .5});
  ASSERT_EQ(budget.budget_bytes, 16 * kGiB);
  const MemoryNeed fits{.weight_bytes = 13 * kGiB,
                        .kv_cache_bytes = 2 * kGiB,
                        .kv_tokens = 1000,
                        .scratch_bytes = kGiB};
  EXPECT_EQ(error_of([&] { require_memory(fits, budget); }), "no error");
  MemoryNeed long_cache = fits;
  long_cache.kv_cache_bytes = 4 * kGiB;
  EXPECT_THAT(error_of([&] { require_memory(long_cache, budget); }),
              AllOf(HasSubstr("2.00 GiB too much"),
                    HasSubstr("KV cache of about 500 tokens instead of 1000"),
                    HasSubstr("Lower --max-model-len"), HasSubstr("50% of 32.00 GiB")));
  MemoryNeed heavy = fits;
  heavy.weight_bytes = 61 * kGiB;
  EXPECT_THAT(error_of([&] { require_memory(heavy, budget); }),
              AllOf(HasSubstr("weights alone do not fit"), HasSubstr("--memory-budget")));
}

TEST(RequireMemory, SaysWhereStatesDoNotFit) {
  const MemoryBudget budget =
      memory_budget({.total_bytes = 32 * kGiB, .available_bytes = 30 * kGiB}, {.utilization = .5});
  MemoryNeed need{.weight_bytes = 13 * kGiB,
                  .kv_cache_bytes = 2 * kGiB,
                  .kv_tokens = 1000,
                  .state_bytes = 2 * kGiB,
                  .num_states = 2};
  EXPECT_THAT(error_of([&] { require_memory(need, budget); }),
              AllOf(HasSubstr("1.00 GiB too much"),
                    HasSubstr("KV cache of about 500 tokens instead of 1000")));
  need.weight_bytes = 15 * kGiB;
  EXPECT_THAT(error_of([&] { require_memory(need, budget); }),
              AllOf(HasSubstr("3.00 GiB too much"),
                    HasSubstr("not the 2.00 GiB that one sequence needs for the states"),
                    HasSubstr("states         2.00 GiB  2 of recurrent layers\n")));
}

TEST(RequireMemory, SaysWhereRequestsMayHaveLess) {
  const MemoryBudget budget =
      memory_budget({.total_bytes = 32 * kGiB, .available_bytes = 30 * kGiB}, {.utilization = .5});
  MemoryNeed need{.weight_bytes = 15 * kGiB, .scratch_bytes = kGiB, .request_bytes = kGiB / 2};
  const char* advice = "A --request-memory of less than 512.0 MiB helps, too.\n";
  EXPECT_THAT(error_of([&] { require_memory(need, budget); }), testing::Not(HasSubstr(advice)));
  need.scratch_bytes = kGiB / 2 + kMiB;
  EXPECT_THAT(error_of([&] { require_memory(need, budget); }), HasSubstr(advice));
}

TEST(MemoryTable, ShowsEveryRow) {
  const MemoryBudget budget =
      memory_budget({.total_bytes = 32 * kGiB, .available_bytes = 30 * kGiB}, {.utilization = .5});
  EXPECT_EQ(memory_table({.weight_bytes = 13 * kGiB,
                          .kv_cache_bytes = 2 * kGiB,
                          .kv_tokens = 1000,
                          .scratch_bytes = 100 * kMiB},
                         budget),
            "weights       13.00 GiB\n"
            "KV cache       2.00 GiB  1000 tokens\n"
            "scratch       100.0 MiB\n"
            "sum           15.10 GiB\n"
            "budget        16.00 GiB  50% of 32.00 GiB\n"
            "left          924.0 MiB\n"
            "reserve        1.60 GiB  for everyone else\n");
}

TEST(ParseSize, ReadsUnits) {
  EXPECT_EQ(parse_size("8G"), 8 * kGiB);
  EXPECT_EQ(parse_size("8GiB"), 8 * kGiB);
  EXPECT_EQ(parse_size("8gb"), 8 * kGiB);
  EXPECT_EQ(parse_size("512M"), 512 * kMiB);
  EXPECT_EQ(parse_size("1.5k"), 1536);
  EXPECT_EQ(parse_size("123456789"), 123456789);
  for (const char* bad :
       {"", "G", "-1G", "8X", "8GG", "nan", "inf", "1e9", "0", "0.5", "99999999T", "8 G", "0x10"})
    EXPECT_THAT(error_of([&] { (void)parse_size(bad); }), HasSubstr("is not a size")) << bad;
}

}  // namespace
}  // namespace nibble
