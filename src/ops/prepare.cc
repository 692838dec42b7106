#include "ops/prepare.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"
#include "ops/cpu_matmul/product.h"
#include "ops/gpu_matmul/row_exponents.h"

namespace nibble::ops {
namespace {

bool asks_for_exponents(const Ctx& cx) {
  return cx.kernels.gpu.sm == 90 && cx.kernels.activations == ActFormat::kFp8;
}
bool is_mxfp4_in(Layout layout, const Site& site) {
  return site.weight.format == Format::kMxfp4 && site.weight.layout == layout;
}
int64_t num_rows(const Weight& w) { return w.experts * w.rows; }

WeightFacts* facts_of(Problem& problem) {
  return std::visit(
      [](auto& desc) -> WeightFacts* {
        if constexpr (requires { desc.facts; }) return &desc.facts;
        return nullptr;
      },
      problem);
}

// moe_up leaves E4M3 for the moe_down behind it: both or neither.
void agree_on_e4m3(Sites& sites) {
  for (Site& up : sites) {
    if (up.key.op != Op::kMoeUp) continue;
    WeightFacts& facts = *facts_of(up.problem);
    const std::vector<Site*> readers = readers_of(sites, up, up.writes.at(0));
    for (const Site* down : readers)
      if (const auto* desc = std::get_if<MoeDownDesc>(&down->problem))
        facts.fits_e4m3 = facts.fits_e4m3 && desc->facts.fits_e4m3;
    for (Site* down : readers)
      if (auto* desc = std::get_if<MoeDownDesc>(&down->problem))
        desc->facts.fits_e4m3 = facts.fits_e4m3;
  }
}

// "moe_up of 3 layers: sm90_w4a16_narrow -> cuda_w4a16_batch in steps of 65 to 512 tokens: ..."
void say_changes(const std::vector<PlanEntry>& before, const Sites& sites) {
  std::map<std::string, int> times;
  for (const PlanEntry& entry : plan_entries(sites)) {
    if (std::ranges::find(before, entry) != before.end()) continue;
    for (const PlanEntry& old : before)
      if (old.site == entry.site && old.kernel != entry.kernel &&
          old.min_tokens <= entry.max_tokens && entry.min_tokens <= old.max_tokens)
        for (const Refusal& refusal : entry.refused)
          if (refusal.kernel == old.kernel)
            ++times[std::string(op_name(entry.site.op)) + ": " + entry.kernel + " in place of " +
                    old.kernel + ": " + refusal.reason];
  }
  for (const auto& [what, count] : times) LOG_WARN("%d of the sites of %s", count, what.c_str());
}

// On CPUs, with one step per token: how much of the weights takes more than one pass in whole
// numbers.
void say_wide_panels(const Sites& sites) {
  int64_t wide = 0, panels = 0;
  for (const Site& site : sites) {
    if (!is_mxfp4_in(Layout::kPanels16, site)) continue;
    wide += count_wide_panels(site.weight);
    panels += num_rows(site.weight) / kGroupRows;
  }
  LOG_INFO(
      "int8-row: %lld of %lld panels of 16 rows have exponents too far apart for whole numbers in "
      "one pass and take more",
      static_cast<long long>(wide), static_cast<long long>(panels));
}

// Of sites whose weights lie in kTiles16x64.
Buffer find_facts(const Ctx& cx, Sites& sites) {
  constexpr FindRowExponentsFn* kFind = NIBBLE_CUDA_KERNEL(gpu::find_row_exponents);
  CHECK(kFind != nullptr);
  Buffer memory = cx.allocate(prepared_bytes(cx, sites));
  auto* at = memory.size_bytes() == 0 ? nullptr : static_cast<uint8_t*>(memory.data());
  for (Site& site : sites) {
    WeightFacts* const facts = facts_of(site.problem);
    if (facts == nullptr || !is_mxfp4_in(Layout::kTiles16x64, site)) continue;
    // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): builds for CPUs end above
    const ExponentMisfits misfits = kFind(cx, site.weight, at);
    *facts = {.fits_e5m2 = misfits.too_large == 0, .fits_e4m3 = misfits.rows == 0};
    if (at != nullptr) site.row_exponents = std::exchange(at, at + num_rows(site.weight));
  }
  agree_on_e4m3(sites);
  return memory;
}

}  // namespace

int64_t prepared_bytes(const Ctx& cx, const Sites& sites) {
  if (!asks_for_exponents(cx)) return 0;
  int64_t rows = 0;
  for (const Site& site : sites)
    if (site.weight.format == Format::kMxfp4) rows += num_rows(site.weight);
  return rows;
}

Buffer prepare_weights(const Ctx& cx, Sites& sites) {
  if (!cx.on_gpu() && cx.kernels.activations == ActFormat::kInt8Row) say_wide_panels(sites);
  if (cx.kernels.gpu.sm != 90) return {};
  const std::vector<PlanEntry> before = plan_entries(sites);
  Buffer memory = find_facts(cx, sites);
  plan_sites(sites, cx.kernels);
  say_changes(before, sites);
  return memory;
}

}  // namespace nibble::ops
