// KernelPlan: which kernel runs each op of each layer for steps of each size, and why the better
// ones do not. Made before the weights are loaded, printed by `nibble doctor`, read by every op of
// a step.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/check.h"
#include "ops/kernel_table.h"

namespace nibble::ops {

// The most tokens of a step of each bucket: kernels are chosen bucket by bucket.
inline constexpr std::array<int64_t, 11> kTokenBuckets = {
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, std::numeric_limits<int32_t>::max()};

struct PlanEntry {
  Op op;
  int layer;                       // -1: outside layers
  int64_t min_tokens, max_tokens;  // of the steps that it serves
  std::string kernel;
  std::vector<Refusal> refused;  // every better row, with its reason
};

class KernelPlan {
 public:
  KernelPlan() = default;
  explicit KernelPlan(int num_layers) : rows_((num_layers + 1) * kNumOps) {}

  // Picks from `table` for `desc` with the tokens of each bucket; throws as pick() does.
  template <typename Desc, typename Fn>
  void add(Op op, int layer, std::span<const Kernel<Desc, Fn>> table, const Desc& desc,
           const KernelOptions& options) {
    int64_t min_tokens = 1;
    for (size_t b = 0; b < kTokenBuckets.size(); ++b) {
      Desc bucket = desc;
      bucket.tokens = kTokenBuckets[b];
      auto picked = pick(op, table, bucket, options);
      rows_.at(index(op, layer))[b] = picked.row;
      note({op, layer, min_tokens, bucket.tokens, picked.row->name, std::move(picked.refused)});
      min_tokens = bucket.tokens + 1;
    }
  }

  const std::vector<PlanEntry>& entries() const { return entries_; }

  // The row chosen by add() for a step of `tokens` tokens; Row is the op's Kernel type.
  template <typename Row>
  const Row& row(Op op, int layer, int64_t tokens) const {
    const auto bucket = std::lower_bound(kTokenBuckets.begin(), kTokenBuckets.end(), tokens);
    const auto* row = static_cast<const Row*>(
        rows_[index(op, layer)][static_cast<size_t>(bucket - kTokenBuckets.begin())]);
    CHECK(row != nullptr && row->run != nullptr);
    return *row;
  }

 private:
  // Joins an entry to the bucket before it where all but the size is the same.
  void note(PlanEntry entry);
  static int index(Op op, int layer) { return (layer + 1) * kNumOps + static_cast<int>(op); }

  std::vector<std::array<const void*, kTokenBuckets.size()>> rows_;
  std::vector<PlanEntry> entries_;
};

}  // namespace nibble::ops
