// How many threads this process can run at once.
#pragma once

#include <filesystem>

namespace nibble::cpu {

struct Cores {
  int affinity = 1;        // logical CPUs that the affinity mask allows
  double cgroup_cpus = 0;  // CPU time per wall time that the cgroup grants; 0: no limit
  // Threads worth running: the lesser of both, the cgroup's share rounded up, at least 1.
  int usable() const;
};

// Reads the affinity mask, and the tightest CPU limit of the process' cgroup and its ancestors
// (v2: cpu.max; v1: cpu.cfs_quota_us / cpu.cfs_period_us) below `root`.
Cores read_cores(const std::filesystem::path& root = "/");

}  // namespace nibble::cpu
