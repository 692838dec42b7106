#include "ops/general_rows.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "ops/refuse.h"

namespace nibble::ops {
namespace {

// Of an op that runs by `kernel`.
std::string line(Op op, const std::string& kernel, std::span<const PlanEntry> entries) {
  std::set<int> layers;
  std::vector<std::string> reasons;
  for (const PlanEntry& entry : entries) {
    if (entry.site.op != op || entry.kernel != kernel) continue;
    layers.insert(entry.site.layer);
    for (const Refusal& r : entry.refused) {
      if (r.reason == kRunsOnCpus || r.reason == kNeedsGpu) continue;
      std::string reason = r.kernel + ": " + r.reason;
      if (std::ranges::find(reasons, reason) == reasons.end()) reasons.push_back(std::move(reason));
    }
  }
  std::string text = op_name(op);
  if (!layers.contains(-1))
    text += " of " + std::to_string(layers.size()) + (layers.size() == 1 ? " layer" : " layers");
  text += " by " + kernel + ", which takes any shape";
  for (const std::string& reason : reasons) text += "; " + reason;
  return text;
}

}  // namespace

std::vector<std::string> say_general_rows(std::span<const PlanEntry> entries) {
  std::vector<std::string> lines;
  std::set<std::pair<Op, std::string>> said;
  for (const PlanEntry& entry : entries)
    if (is_general(entry.kernel) && said.emplace(entry.site.op, entry.kernel).second)
      lines.push_back(line(entry.site.op, entry.kernel, entries));
  return lines;
}

}  // namespace nibble::ops
