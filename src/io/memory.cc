#include "io/memory.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kGiB = 1024 * kMiB;

// "MemAvailable:  123 kB" or "inactive_file 4096": the number after `key` at the start of a line.
std::optional<int64_t> read_field(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  std::string name;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

// The number that a file consists of; nullopt for "max" or no such file.
std::optional<int64_t> read_number(const fs::path& file) {
  std::ifstream in(file);
  int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// File names of one version of the memory controller.
struct CgroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive_file;  // in memory.stat: page cache that gives way without harm
};
constexpr CgroupFiles kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                             "total_inactive_file"};
constexpr CgroupFiles kV2 = {"memory.max", "memory.current", "inactive_file"};

void tighten(std::optional<int64_t>& value, int64_t other) {
  value = value ? std::min(*value, other) : other;
}

// From the process' group up to the mount: every ancestor's limit binds. Inside a container the
// path may name a group above the mount; then the mount itself is the group.
void walk_up(const fs::path& mount, const fs::path& group, const CgroupFiles& names,
             MachineMemory& machine) {
  fs::path relative = group.relative_path();
  while (true) {
    const fs::path directory = relative.empty() ? mount : mount / relative;
    const std::optional<int64_t> limit = read_number(directory / names.limit);
    // v1 writes "no limit" as a number of about 2^63.
    if (limit && *limit < machine.total_bytes) {
      tighten(machine.cgroup_limit_bytes, *limit);
      const int64_t used = read_number(directory / names.usage).value_or(0) -
                           read_field(directory / "memory.stat", names.inactive_file).value_or(0);
      tighten(machine.cgroup_available_bytes,
              std::max<int64_t>(0, *limit - std::max<int64_t>(0, used)));
    }
    if (relative.empty()) return;
    relative = relative.parent_path();
  }
}

// Whether a comma-separated list has a word.
bool has_word(const std::string& list, const std::string& wanted) {
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');)
    if (word == wanted) return true;
  return false;
}

std::string percent(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g%%", fraction * 100);
  return text;
}

}  // namespace

MachineMemory read_machine_memory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  const auto total = read_field(meminfo, "MemTotal:");
  const auto available = read_field(meminfo, "MemAvailable:");
  if (!total || !available)
    throw Error(ErrorKind::kMemory,
                meminfo.string() + ": has no MemTotal or MemAvailable; give --memory-budget");
  MachineMemory machine{.total_bytes = *total * kKiB,
                        .available_bytes = *available * kKiB,
                        .cgroup_limit_bytes = {},
                        .cgroup_available_bytes = {}};

  // Lines "number:controllers:path"; version 2 is the one without controllers.
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) {
      walk_up(root / "sys/fs/cgroup", group, kV2, machine);
      walk_up(root / "sys/fs/cgroup/unified", group, kV2, machine);
    } else if (has_word(controllers, "memory")) {
      walk_up(root / "sys/fs/cgroup/memory", group, kV1, machine);
    }
  }
  return machine;
}

MemoryBudget memory_budget(const MachineMemory& machine, const MemoryRule& rule) {
  if (!(rule.utilization > 0 && rule.utilization <= 1))
    throw Error(ErrorKind::kUsage, "--gpu-memory-utilization is a fraction above 0 and up to 1");
  MemoryBudget budget;
  budget.total_bytes =
      std::min(machine.total_bytes, machine.cgroup_limit_bytes.value_or(machine.total_bytes));
  budget.available_bytes = std::min(
      machine.available_bytes, machine.cgroup_available_bytes.value_or(machine.available_bytes));
  budget.reserve_bytes =
      std::max(budget.total_bytes / 20, rule.shared_with_gpu ? 4 * kGiB : 512 * kMiB);
  const int64_t free = std::max<int64_t>(0, budget.available_bytes - budget.reserve_bytes);
  if (rule.budget_bytes) {
    if (*rule.budget_bytes > budget.total_bytes)
      throw Error(ErrorKind::kUsage, "--memory-budget " + format_size(*rule.budget_bytes) +
                                         ": there are only " + format_size(budget.total_bytes));
    if (rule.shared_with_gpu && *rule.budget_bytes > free)
      throw Error(ErrorKind::kMemory, "--memory-budget " + format_size(*rule.budget_bytes) + ": " +
                                          format_size(budget.available_bytes) +
                                          " are available, of which " +
                                          format_size(budget.reserve_bytes) +
                                          " stay with the host, whose memory is the GPU's");
    budget.budget_bytes = *rule.budget_bytes;
    budget.rule = "--memory-budget";
    return budget;
  }
  const int64_t whole = rule.shared_with_gpu ? budget.available_bytes : budget.total_bytes;
  const auto share = static_cast<int64_t>(rule.utilization * static_cast<double>(whole));
  budget.budget_bytes = std::min(share, free);
  budget.rule = share < free ? percent(rule.utilization) + " of " + format_size(whole) +
                                   (rule.shared_with_gpu ? " available" : "")
                             : format_size(budget.available_bytes) + " available, less the reserve";
  return budget;
}

std::string memory_table(const MemoryNeed& need, const MemoryBudget& budget) {
  std::string table;
  const auto row = [&](const char* name, int64_t bytes, const std::string& note) {
    char text[160];
    std::snprintf(text, sizeof text, "%-10s %12s%s%s\n", name, format_size(bytes).c_str(),
                  note.empty() ? "" : "  ", note.c_str());
    table += text;
  };
  row("weights", need.weight_bytes, "");
  row("KV cache", need.kv_cache_bytes, std::to_string(need.kv_tokens) + " tokens");
  if (need.num_states > 0)
    row("states", need.state_bytes, std::to_string(need.num_states) + " of recurrent layers");
  row("scratch", need.scratch_bytes, "");
  if (need.request_bytes > 0) row("requests", need.request_bytes, "their bodies and answers");
  row("sum", need.total_bytes(), "");
  row("budget", budget.budget_bytes, budget.rule);
  row("left", budget.budget_bytes - need.total_bytes(), "");
  row("reserve", budget.reserve_bytes, "for everyone else");
  return table;
}

void require_memory(const MemoryNeed& need, const MemoryBudget& budget) {
  const int64_t over = need.total_bytes() - budget.budget_bytes;
  if (over <= 0) return;
  std::string advice = "The model does not fit: " + format_size(over) + " too much.\n";
  const int64_t for_cache = budget.budget_bytes - need.total_bytes() + need.kv_cache_bytes;
  const int64_t token_bytes = need.kv_tokens > 0 ? need.kv_cache_bytes / need.kv_tokens : 0;
  if (for_cache > 0 && token_bytes > 0) {
    advice += "What would fit: a KV cache of about " + std::to_string(for_cache / token_bytes) +
              " tokens instead of " + std::to_string(need.kv_tokens) +
              ". Lower --max-model-len or --max-num-seqs.\n";
  } else if (need.state_bytes > 0 && for_cache + need.state_bytes > 0) {
    advice += "The weights fit, but beside them not the " + format_size(need.state_bytes) +
              " that one sequence needs for the states of recurrent layers, however short it is. "
              "Lower --max-num-batched-tokens or --max-num-seqs, or raise the budget.\n";
  } else if (budget.budget_bytes > need.weight_bytes) {
    advice +=
        "The weights fit, the rest does not. Lower --max-num-batched-tokens, --max-num-seqs "
        "or --max-model-len.\n";
  } else {
    advice += "The weights alone do not fit: take a smaller model or a machine with more memory.\n";
  }
  if (need.request_bytes > over)
    advice +=
        "A --request-memory of less than " + format_size(need.request_bytes) + " helps, too.\n";
  if (budget.available_bytes - budget.reserve_bytes < budget.total_bytes / 2)
    advice += "Other programs hold much of the memory; ending some would help.\n";
  advice += "--memory-budget SIZE sets the budget by hand.\n";
  throw Error(ErrorKind::kMemory, advice + memory_table(need, budget));
}

int64_t parse_size(std::string_view text) {
  const auto fail = [&] {
    throw Error(ErrorKind::kUsage,
                "\"" + std::string(text) + "\" is not a size; write 8G, 8GiB, 512M or bytes");
  };
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || !(value >= 0)) fail();
  std::string unit;
  for (const char* c = rest; c != end; ++c)
    unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  if (unit.ends_with("ib"))
    unit.resize(unit.size() - 2);
  else if (unit.ends_with("b"))
    unit.resize(unit.size() - 1);
  constexpr std::string_view kUnits = "kmgt";
  if (unit.size() > 1) fail();
  if (unit.size() == 1) {
    const size_t power = kUnits.find(unit[0]);
    if (power == std::string_view::npos) fail();
    value = std::ldexp(value, 10 * static_cast<int>(power + 1));
  }
  if (value < 1 || value > 9e15 || (unit.empty() && value != std::floor(value))) fail();
  return static_cast<int64_t>(value);
}

std::string format_size(int64_t bytes) {
  const double size = static_cast<double>(bytes);
  char text[32];
  if (std::fabs(size) >= static_cast<double>(kGiB)) {
    std::snprintf(text, sizeof text, "%.2f GiB", size / static_cast<double>(kGiB));
  } else if (std::fabs(size) >= static_cast<double>(kMiB)) {
    std::snprintf(text, sizeof text, "%.1f MiB", size / static_cast<double>(kMiB));
  } else {
    std::snprintf(text, sizeof text, "%.1f KiB", size / static_cast<double>(kKiB));
  }
  return text;
}

}  // namespace nibble
