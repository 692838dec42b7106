#include "ops/plan.h"

#include <map>
#include <utility>

namespace nibble::ops {

std::string site_label(const SiteKey& key) {
  std::string label = op_name(key.op);
  if (!key.name.empty()) label += "/" + key.name;
  if (key.layer >= 0) label += "." + std::to_string(key.layer);
  return label;
}

std::vector<std::string> resident_twice(const std::vector<PlanEntry>& entries) {
  std::vector<std::string> twice;
  std::map<SiteKey, std::string> first;
  for (const PlanEntry& entry : entries) {
    const auto [seen, is_new] = first.try_emplace(entry.site, entry.weights);
    if (is_new || seen->second == entry.weights) continue;
    twice.push_back(site_label(entry.site) + ": " + seen->second + ", and " + entry.weights);
  }
  return twice;
}

void SitePlan::note(PlanEntry entry) {
  if (!entries_.empty()) {
    PlanEntry& last = entries_.back();
    if (last.kernel == entry.kernel && last.refused == entry.refused) {
      last.max_tokens = entry.max_tokens;
      return;
    }
  }
  entries_.push_back(std::move(entry));
}

}  // namespace nibble::ops
