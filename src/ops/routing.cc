#include "ops/routing.h"

#include <algorithm>

namespace nibble {

void sort_by_expert(Routing& r) {
  const int64_t choices = static_cast<int64_t>(r.num_tokens) * r.top_k;
  std::fill(r.counts, r.counts + r.num_experts, 0);
  for (int64_t i = 0; i < choices; ++i) ++r.counts[r.ids[i]];
  r.offsets[0] = 0;
  for (int e = 0; e < r.num_experts; ++e) r.offsets[e + 1] = r.offsets[e] + r.counts[e];
  // counts serves as the cursor and ends as it was.
  std::fill(r.counts, r.counts + r.num_experts, 0);
  for (int64_t i = 0; i < choices; ++i) {
    const int32_t e = r.ids[i];
    r.slot[i] = r.offsets[e] + r.counts[e]++;
    r.token[r.slot[i]] = static_cast<int32_t>(i / r.top_k);
  }
}

}  // namespace nibble
