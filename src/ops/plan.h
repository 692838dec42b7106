// KernelPlan: which kernel runs each op of each layer, and why the better ones do not. Made before
// the weights are loaded, printed by `nibble doctor`, read by every op of a step.
#pragma once

#include <string>
#include <vector>

#include "base/check.h"
#include "ops/kernel_table.h"

namespace nibble::ops {

struct PlanEntry {
  Op op;
  int layer;  // -1: outside layers
  std::string kernel;
  std::vector<Refusal> refused;  // every better row, with its reason
};

class KernelPlan {
 public:
  KernelPlan() = default;
  explicit KernelPlan(int num_layers) : rows_((num_layers + 1) * kNumOps, nullptr) {}

  // Picks from `table` for `desc`; throws as pick() does.
  template <typename Desc, typename Fn>
  void add(Op op, int layer, std::span<const Kernel<Desc, Fn>> table, const Desc& desc,
           const KernelOptions& options) {
    auto picked = pick(op, table, desc, options);
    rows_.at(index(op, layer)) = picked.row;
    entries_.push_back({op, layer, picked.row->name, std::move(picked.refused)});
  }

  const std::vector<PlanEntry>& entries() const { return entries_; }

  // The row chosen by add(); Row is the op's Kernel type.
  template <typename Row>
  const Row& row(Op op, int layer) const {
    const void* row = rows_[index(op, layer)];
    CHECK(row != nullptr);
    return *static_cast<const Row*>(row);
  }

 private:
  static int index(Op op, int layer) { return (layer + 1) * kNumOps + static_cast<int>(op); }

  std::vector<const void*> rows_;
  std::vector<PlanEntry> entries_;
};

}  // namespace nibble::ops
