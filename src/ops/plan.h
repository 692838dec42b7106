// SitePlan: which kernel runs one call of an op for steps of each size, and why the better ones do
// not. Made before the weights are loaded, printed by `nibble doctor`, read whenever the op runs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ops/kernel_table.h"

namespace nibble::ops {

// The most tokens of a step of each bucket: kernels are chosen bucket by bucket.
inline constexpr std::array<int64_t, 11> kTokenBuckets = {
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, std::numeric_limits<int32_t>::max()};

// Which call: `name` tells apart those of one op in a layer.
struct SiteKey {
  SiteKey(Op of = Op::kEmbed, int in_layer = -1, std::string called = {})
      : op(of), layer(in_layer), name(std::move(called)) {}
  Op op;
  int layer;  // -1: outside layers
  std::string name;
  bool operator==(const SiteKey&) const = default;
  auto operator<=>(const SiteKey&) const = default;
};
// "moe_up.3", "out_proj/second.3", "norm_unembed"
std::string site_label(const SiteKey& key);

struct PlanEntry {
  SiteKey site;
  int64_t min_tokens, max_tokens;  // of the steps that it serves
  std::string kernel;
  std::vector<Refusal> refused;  // every better row, with its reason
  std::string weights = "";      // "mxfp4 in panels16"; empty: the op has no matrix
  bool operator==(const PlanEntry&) const = default;
};

// "moe_up.3: mxfp4 in tiles16x64, and mxfp4 in rows": matrices that would lie in memory twice, as
// kernels of different sizes of step read them in different layouts. None in a SitePlan.
std::vector<std::string> resident_twice(const std::vector<PlanEntry>& entries);

class SitePlan {
 public:
  SitePlan() = default;

  // Picks from `table` for `desc` with the tokens of each bucket. All buckets read one layout of
  // the weights: `resident` where they lie in one already, else of those that serve every bucket
  // that of the first row, in the table's order, which then runs. Throws Error(kUnsupported) with
  // every refusal where none does.
  template <typename Desc, typename Fn>
  SitePlan(const SiteKey& site, std::span<const Kernel<Desc, Fn>> table, const Desc& desc,
           const KernelOptions& options, std::optional<Layout> resident = std::nullopt) {
    for (const TunedKernel& tuned : options.tuned)
      if (tuned.op == site.op &&
          std::ranges::none_of(table, [&](const auto& row) { return tuned.kernel == row.name; }))
        internal::throw_unknown_kernel(site.op, tuned.kernel);
    layout_ = resident ? *resident : common_layout(site.op, table, desc, options);
    int64_t min_tokens = 1;
    for (size_t b = 0; b < kTokenBuckets.size(); ++b) {
      const Desc bucket = with_tokens(desc, b);
      auto picked = find_kernel(site.op, table, bucket, options, layout_);
      if (picked.row == nullptr) internal::throw_no_kernel(site.op, picked.refused);
      rows_[b] = picked.row;
      note({site, min_tokens, bucket.tokens, picked.row->name, std::move(picked.refused),
            weights_text(desc, layout_)});
      min_tokens = bucket.tokens + 1;
    }
  }

  // In which all kernels read the matrix.
  Layout layout() const { return layout_; }

  const std::vector<PlanEntry>& entries() const { return entries_; }

  const PlanEntry& entry(int64_t tokens) const {
    return *std::ranges::find_if(entries_,
                                 [&](const PlanEntry& e) { return tokens <= e.max_tokens; });
  }

  // The row for a step of `tokens` tokens; Row is the op's Kernel type. Its kernel may be one that
  // this build does not have.
  template <typename Row>
  const Row& row(int64_t tokens) const {
    const auto bucket = std::lower_bound(kTokenBuckets.begin(), kTokenBuckets.end(), tokens);
    const auto* row =
        static_cast<const Row*>(rows_[static_cast<size_t>(bucket - kTokenBuckets.begin())]);
    CHECK(row != nullptr);
    return *row;
  }

 private:
  template <typename Desc>
  static std::string weights_text(const Desc& desc, Layout layout) {
    if constexpr (requires { desc.format; })
      return std::string(format_name(desc.format)) + " in " + std::string(layout_name(layout));
    return "";
  }

  template <typename Desc>
  static Desc with_tokens(Desc desc, size_t bucket) {
    desc.tokens = kTokenBuckets[bucket];
    return desc;
  }

  template <typename Desc, typename Fn>
  static Layout common_layout(Op op, std::span<const Kernel<Desc, Fn>> table, const Desc& desc,
                              const KernelOptions& options) {
    for (const auto& row : table) {
      bool is_used = false, serves_all = true;
      for (size_t b = 0; serves_all && b < kTokenBuckets.size(); ++b) {
        const auto* found = find_kernel(op, table, with_tokens(desc, b), options, row.layout).row;
        serves_all = found != nullptr;
        is_used |= found == &row;
      }
      if (serves_all && is_used) return row.layout;
    }
    for (size_t b = 0; b < kTokenBuckets.size(); ++b)
      pick(op, table, with_tokens(desc, b), options);  // throws where not even one size is served
    internal::throw_no_kernel(op, {{"all", "none reads a layout that serves steps of every size"}});
  }

  // Joins an entry to the bucket before it where all but the size is the same.
  void note(PlanEntry entry);

  std::array<const void*, kTokenBuckets.size()> rows_{};
  Layout layout_ = Layout::kRows;
  std::vector<PlanEntry> entries_;
};

}  // namespace nibble::ops
