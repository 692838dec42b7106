// How much memory nibble may use, decided before anything is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

// What the machine has, in bytes. cgroup_*: the tightest limit of this process' control group and
// its ancestors, and what may still be taken under it (its page cache counts as free).
struct MachineMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;  // MemAvailable
  std::optional<int64_t> cgroup_limit_bytes = {};
  std::optional<int64_t> cgroup_available_bytes = {};
};

// Reads /proc/meminfo, /proc/self/cgroup and /sys/fs/cgroup (v1 and v2) below `root`. Throws
// Error(kMemory) where MemTotal or MemAvailable cannot be read.
MachineMemory read_machine_memory(const std::filesystem::path& root = "/");

struct MemoryRule {
  double utilization = 0.9;                  // --gpu-memory-utilization
  std::optional<int64_t> budget_bytes = {};  // --memory-budget: overrides the rule
  // GPU and host share the memory: utilization is of what is available, as everything else on the
  // machine lives in the same.
  bool shared_with_gpu = false;
};

struct MemoryBudget {
  int64_t total_bytes = 0;      // of the device, or the cgroup's limit where that is less
  int64_t available_bytes = 0;  // now
  int64_t reserve_bytes =
      0;  // left to everyone else: 5% of total, at least 512 MiB (shared: 4 GiB)
  // min(utilization * total, available - reserve), or --memory-budget; shared: utilization *
  // available, and neither is ever over available - reserve
  int64_t budget_bytes = 0;
  std::string rule;  // which of them it was, in words
};

// Throws Error(kUsage) for a utilization outside (0, 1] or a budget over total_bytes, kMemory for
// one over what a shared memory has left.
MemoryBudget memory_budget(const MachineMemory& machine, const MemoryRule& rule);

// What a run will allocate. KV cache bytes hold kv_tokens tokens (all sequences together).
struct MemoryNeed {
  int64_t weight_bytes = 0;
  int64_t kv_cache_bytes = 0;
  int64_t kv_tokens = 0;
  int64_t state_bytes = 0;  // of recurrent layers, beside the KV cache
  int32_t num_states = 0;
  int64_t scratch_bytes = 0;
  int64_t request_bytes = 0;  // a server's, for what clients send and are sent
  int64_t total_bytes() const {
    return weight_bytes + kv_cache_bytes + state_bytes + scratch_bytes + request_bytes;
  }
};

// Weights, KV cache, states (if any), scratch, requests (if any), sum, budget, what is left,
// reserve: one row each; ends in a newline.
std::string memory_table(const MemoryNeed& need, const MemoryBudget& budget);

// Throws Error(kMemory) with the table and with what would fit, where the need is over the budget.
void require_memory(const MemoryNeed& need, const MemoryBudget& budget);

// "8G", "8GiB", "512M", "1.5g", "1000000": powers of 1024. Throws Error(kUsage).
int64_t parse_size(std::string_view text);
// "12.82 GiB"
std::string format_size(int64_t bytes);

}  // namespace nibble
