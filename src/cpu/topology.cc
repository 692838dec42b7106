#include "cpu/topology.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

namespace nibble::cpu {
namespace {

namespace fs = std::filesystem;

int affinity_count() {
  // The kernel's mask may be wider than cpu_set_t; grow until it fits.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const int rc = sched_getaffinity(0, bytes, set);
    const int count = rc == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (rc == 0) return std::max(1, count);
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::optional<double> quotient(const std::string& quota, const std::string& period) {
  char* end = nullptr;
  const double q = std::strtod(quota.c_str(), &end);
  if (end == quota.c_str() || q <= 0) return std::nullopt;  // "max", "-1", or nothing
  const double p = std::strtod(period.c_str(), nullptr);
  if (p <= 0) return std::nullopt;
  return q / p;
}

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// The limit that one cgroup directory sets.
std::optional<double> limit_of(const fs::path& dir, bool v2) {
  if (!v2)
    return quotient(first_line(dir / "cpu.cfs_quota_us"), first_line(dir / "cpu.cfs_period_us"));
  std::istringstream fields(first_line(dir / "cpu.max"));
  std::string quota, period;
  fields >> quota >> period;
  return quotient(quota, period);
}

// The tightest limit from mount/path up to the mount.
double tightest(const fs::path& mount, fs::path path, bool v2) {
  double best = 0;
  path = path.relative_path();
  while (true) {
    if (const auto limit = limit_of(mount / path, v2); limit && (best == 0 || *limit < best))
      best = *limit;
    if (path.empty()) return best;
    path = path.parent_path();
  }
}

}  // namespace

int Cores::usable() const {
  if (cgroup_cpus <= 0) return affinity;
  return std::clamp(static_cast<int>(std::ceil(cgroup_cpus)), 1, affinity);
}

Cores read_cores(const fs::path& root) {
  Cores cores{.affinity = affinity_count()};
  std::ifstream groups(root / "proc/self/cgroup");
  const fs::path mount = root / "sys/fs/cgroup";
  // Lines "id:controllers:path"; v2 has id 0 and no controllers.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    double limit = 0;
    if (controllers.empty()) {
      limit = tightest(mount, path, /*v2=*/true);
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      const fs::path v1 = mount / controllers;
      limit = tightest(fs::exists(v1) ? v1 : mount / "cpu", path, /*v2=*/false);
    }
    if (limit > 0 && (cores.cgroup_cpus == 0 || limit < cores.cgroup_cpus))
      cores.cgroup_cpus = limit;
  }
  return cores;
}

}  // namespace nibble::cpu
