// For tests of norm_route.
#pragma once

#include <algorithm>
#include <vector>

#include "ops/norm_route/norm_route.h"
#include "ops/test_problem.h"

namespace nibble::ops {

// Makes the choice of a token; whether it stays where its logits move by as much as `error`, the
// chosen ones down and the others up.
inline bool is_clear(const std::vector<float>& logits, TestRouting& one, double error) {
  choose_experts(logits.data(), one.view, 0);
  const std::vector<int32_t> ids = one.ids;
  const std::vector<float> p = one.p;
  bool clear = true;
  for (size_t k = 0; clear && k < ids.size(); ++k) {
    std::vector<float> moved = logits;
    for (size_t e = 0; e < moved.size(); ++e) {
      const bool is_better = std::find(ids.begin(), ids.begin() + k + 1, e) != ids.begin() + k + 1;
      moved[e] += static_cast<float>(is_better ? -error : error);
    }
    choose_experts(moved.data(), one.view, 0);
    clear = std::equal(ids.begin(), ids.begin() + k + 1, one.ids.begin());
  }
  one.ids = ids, one.p = p;
  return clear;
}

}  // namespace nibble::ops
