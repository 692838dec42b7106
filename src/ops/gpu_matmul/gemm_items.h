// How the GEMMs are cut into work items, as far as the host decides it.
#pragma once

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "ops/gpu_matmul/expert_limits.h"
#include "ops/gpu_matmul/gemm_sm90.h"

namespace nibble::ops::gpu {
// `args` with w's shape, and what lies beside its codes.
inline GemmArgs args_of(const Weight& w, GemmArgs args) {
  CHECK(w.cols % 64 == 0 && w.rows % 16 == 0 && w.experts <= kMaxExperts);
  args.bias = w.bias, args.row_scales = w.row_scales;
  args.experts = static_cast<int32_t>(w.experts);
  args.rows = static_cast<int32_t>(w.rows), args.cols = static_cast<int32_t>(w.cols);
  return args;
}

// Whether shapes of many slots an item are the faster: dense weights, and experts of more than 128
// slots on average.
inline bool has_wide_items(const GemmArgs& args) {
  return args.offsets == nullptr || args.num_slots > 128 * args.experts;
}

// Slots of a work item, at most; for dense weights fewer where that fills the SMs better. An item
// costs what 200 slots do, and its slots.
template <typename Shape>
int32_t slots_of_item(const GemmArgs& args, int num_sms) {
  if (args.offsets != nullptr) return Shape::kMaxSlots;
  const int row_tiles = (args.rows + Shape::kRows - 1) / Shape::kRows;
  int32_t best = Shape::kMaxSlots;
  int least = std::numeric_limits<int>::max();
  for (int32_t n = Shape::kMaxSlots; n > 0; n -= Shape::kStep) {
    const int items = row_tiles * ((args.num_slots + n - 1) / n);
    const int cost = (items + num_sms - 1) / num_sms * (n + 200);
    if (cost < least) best = n, least = cost;
  }
  return best;
}

// Slots of a work item and shares of K of a dense product of few row tiles: an item costs as many
// units of K as it has and 6 more, each what 200 slots do and its slots.
struct SlicedItems {
  int32_t max_n, slices;
};
template <typename Shape>
SlicedItems slices_of_items(const GemmArgs& args, int num_sms, int most_slices) {
  const int row_tiles = (args.rows + Shape::kRows - 1) / Shape::kRows, units = args.cols / 64;
  SlicedItems best{Shape::kMaxSlots, 1};
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int slices = 1; slices <= std::min(most_slices, std::max(1, units / 8)); ++slices)
    for (int32_t n = Shape::kMaxSlots; n > 0; n -= Shape::kStep) {
      const int items = row_tiles * ((args.num_slots + n - 1) / n) * slices;
      const int64_t waves = (items + num_sms - 1) / num_sms;
      const int64_t cost = waves * (n + 200) * ((units + slices - 1) / slices + 6);
      if (cost < least) best = {n, slices}, least = cost;
    }
  return best;
}

// Slots of a work item of the GEMMs by mma.sync, at most. Of a dense matrix fewer, where one round
// of items is left room by them: they meet in L2.
inline int32_t slots_of_mma_item(const GemmArgs& args, int rows, int32_t most, int num_sms) {
  if (args.offsets != nullptr) return most;
  const int row_tiles = (args.rows + rows - 1) / rows;
  const int token_tiles = std::max(1, num_sms / row_tiles);
  return std::min(most, ((args.num_slots + token_tiles - 1) / token_tiles + 15) / 16 * 16);
}

}  // namespace nibble::ops::gpu
