#include "ops/plan.h"

#include <map>
#include <utility>

namespace nibble::ops {

std::vector<std::string> resident_twice(const std::vector<PlanEntry>& entries) {
  std::vector<std::string> twice;
  std::map<std::pair<Op, int>, std::string> first;
  for (const PlanEntry& entry : entries) {
    const auto [seen, is_new] = first.try_emplace({entry.op, entry.layer}, entry.weights);
    if (is_new || seen->second == entry.weights) continue;
    const std::string where = entry.layer < 0 ? "" : " of layer " + std::to_string(entry.layer);
    twice.push_back(op_name(entry.op) + where + ": " + seen->second + ", and " + entry.weights);
  }
  return twice;
}

void KernelPlan::note(PlanEntry entry) {
  if (!entries_.empty()) {
    PlanEntry& last = entries_.back();
    if (last.op == entry.op && last.layer == entry.layer && last.kernel == entry.kernel &&
        last.weights == entry.weights && last.refused == entry.refused &&
        last.max_tokens + 1 == entry.min_tokens) {
      last.max_tokens = entry.max_tokens;
      return;
    }
  }
  entries_.push_back(std::move(entry));
}

}  // namespace nibble::ops
