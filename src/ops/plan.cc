#include "ops/plan.h"

namespace nibble::ops {

void KernelPlan::note(PlanEntry entry) {
  if (!entries_.empty()) {
    PlanEntry& last = entries_.back();
    if (last.op == entry.op && last.layer == entry.layer && last.kernel == entry.kernel &&
        last.refused == entry.refused && last.max_tokens + 1 == entry.min_tokens) {
      last.max_tokens = entry.max_tokens;
      return;
    }
  }
  entries_.push_back(std::move(entry));
}

}  // namespace nibble::ops
