#include "ops/site.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "dist/comm.h"
#include "ops/norm/add_norm_over_ranks.h"

namespace nibble::ops {
namespace {

// Of experts that a step's tokens meet.
template <typename Desc>
int64_t distinct_experts(const Desc& d, int64_t tokens) {
  const auto chosen = static_cast<double>(d.top_k - d.shared);
  const auto among = static_cast<double>(d.experts - d.shared);
  const double missed = std::pow(1 - chosen / among, static_cast<double>(tokens));
  return std::llround(among * (1 - missed)) + d.shared;
}

template <typename Desc>
Work work(const Desc& d, const StepShape& s) {  // of what is done once a token
  const int64_t tokens = s.streams * s.tokens;
  return {bytes(d, tokens, s.act_bytes), flops(d, tokens)};
}
Work work(const EmbedDesc& d, const StepShape& s) { return {bytes(d, s.streams * s.tokens), 0}; }
Work work(const DeltaRuleDesc& d, const StepShape& s) {
  return {bytes(d, s.streams, s.tokens, s.act_bytes), flops(d, s.streams * s.tokens)};
}
Work work(const Mamba2Desc& d, const StepShape& s) {
  return {bytes(d, s.streams, s.tokens, s.act_bytes), flops(d, s.streams * s.tokens)};
}
Work work(const AttentionDesc& d, const StepShape& s) {
  return {s.streams * bytes(d, s.tokens, s.context, s.kv_bytes, s.act_bytes),
          s.streams * flops(d, s.tokens, s.context)};
}
template <typename Desc>
Work work_of_experts(const Desc& d, const StepShape& s) {
  const int64_t tokens = s.streams * s.tokens;
  return {bytes(d, tokens, distinct_experts(d, tokens), s.act_bytes), flops(d, tokens)};
}
Work work(const MoeUpDesc& d, const StepShape& s) { return work_of_experts(d, s); }
Work work(const MoeDownDesc& d, const StepShape& s) { return work_of_experts(d, s); }
Work work(const NormUnembedDesc& d, const StepShape& s) {
  if (!s.logits) return {};
  return {bytes(d, s.streams, s.act_bytes), flops(d, s.streams)};
}

int64_t scratch(EmbedDesc, const Ctx&) { return 0; }
int64_t scratch(const AllReduceDesc&, const Ctx&) { return 0; }
int64_t scratch(const AttentionDesc& d, const Ctx& cx) {
  return cx.on_gpu() ? gpu::scratch_bytes(d) : scratch_bytes(d, cx.threads());
}
template <typename Desc>
int64_t scratch(const Desc& d, const Ctx& cx) {
  return cx.on_gpu() ? gpu::scratch_bytes(d) : scratch_bytes(d, d.tokens, cx.threads());
}

// Whether the row of a site finishes what the one in front leaves.
bool takes(const Site& reader, int64_t tokens) {
  return std::visit(
      [&](const auto& desc) {
        using Row = std::remove_cv_t<typename decltype(kernels_of(desc))::element_type>;
        return reader.plan.row<Row>(tokens).takes >= tokens;
      },
      reader.problem);
}

// What norm_route and norm_qkv need to know of those behind them.
void find_takers(Sites& sites) {
  for (Site& site : sites) {
    site.readers_take = 0;
    const auto* heads = std::get_if<NormQkvDesc>(&site.problem);
    if (site.key.op != Op::kNormRoute && (heads == nullptr || !may_leave_heads(*heads))) continue;
    const std::vector<Site*> readers = readers_of(sites, site, heads == nullptr ? "routing" : "q");
    for (const int32_t tokens : {1, 2, 4, 8}) {  // of the plans' first buckets
      const auto all = [&](const Site* reader) { return takes(*reader, tokens); };
      if (readers.empty() || !std::ranges::all_of(readers, all)) break;
      if (heads != nullptr && readers.size() > 1) break;  // who takes heads leaves no q behind
      site.readers_take = tokens;
    }
  }
}

// Whose product a sum is of; none where that is not among the sites.
Site* product_of(Sites& sites, const Site& sum) {
  Site* last = nullptr;
  for (Site& site : sites) {
    if (&site == &sum) break;
    if (std::ranges::find(site.writes, sum.writes.front()) != site.writes.end()) last = &site;
  }
  return last;
}

// Of moe_down: rows that end in combine() or leave that to the norm.
int64_t choices_left_from(const MoeDownDesc& d, std::string_view row) {
  const bool leaves = row.starts_with("sm90_") && row.ends_with("_gemm") && !d.adds;
  return leaves ? 2 * gpu::PeerMemory::kBlocks + 1 : INT64_MAX;
}

// In which a token meets others.
bool is_mixer(const Site& site) {
  return site.key.op == Op::kAttention || site.key.op == Op::kDeltaRule ||
         site.key.op == Op::kMamba2;
}

// What all_reduce needs to know of what is behind it, and the product in front of it.
void find_left_sums(Sites& sites, const KernelOptions& options) {
  auto mixers = std::ranges::count_if(sites, is_mixer);
  for (Site& site : sites) {
    site.left_from = site.sent_from = site.choices_left_from = INT64_MAX;
    mixers -= is_mixer(site);
    if (site.key.op != Op::kAllReduce) continue;
    const std::vector<Site*> readers = readers_of(sites, site, site.writes.front());
    const int64_t hidden = std::get<AllReduceDesc>(site.problem).hidden;
    if (readers.size() != 1 || hidden % 32 != 0 || hidden > gpu::kMostHiddenOverRanks) continue;
    for (size_t b = kTokenBuckets.size(); b-- > 0;) {
      const int64_t tokens = kTokenBuckets[b];
      if (site.plan.entry(tokens).kernel != kOneShotBlocks || !takes(*readers[0], tokens)) break;
      site.left_from = b == 0 ? 1 : kTokenBuckets[b - 1] + 1;
    }
    // Behind the last mixer the sum of some rows alone may be wanted (SiteModel::out_rows_of).
    if (site.left_from == INT64_MAX || mixers == 0) continue;
    Site* const product = product_of(sites, site);
    if (product == nullptr) continue;
    const std::string& row = product->plan.entry(kTokenBuckets.back()).kernel;
    if (const auto* out = std::get_if<OutProjDesc>(&product->problem))
      product->sent_from = site.sent_from =
          std::max(site.left_from, sends_from(*out, row, options));
    if (const auto* down = std::get_if<MoeDownDesc>(&product->problem))
      product->choices_left_from = std::max(site.left_from, choices_left_from(*down, row));
  }
}

}  // namespace

void plan_sites(Sites& sites, const KernelOptions& options) {
  for (Site& site : sites)
    std::visit(
        [&](const auto& desc) {
          std::optional<Layout> resident;
          if (site.in_rows) resident = Layout::kRows;
          if (site.weight.codes != nullptr) resident = site.weight.layout;
          site.plan = SitePlan(site.key, kernels_of(desc), desc, options, resident);
        },
        site.problem);
  find_takers(sites);
  find_left_sums(sites, options);
}

void agree_on_left_sums(Sites& sites, dist::Comm& comm) {
  struct From {
    int64_t left, sent;
  };
  std::vector<Site*> sums;
  std::vector<From> mine;
  for (Site& site : sites)
    if (site.key.op == Op::kAllReduce)
      sums.push_back(&site), mine.push_back({site.left_from, site.sent_from});
  if (sums.empty()) return;
  std::vector<From> all(mine.size() * comm.size());
  comm.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < all.size(); ++i) {
    Site& sum = *sums[i % sums.size()];
    sum.left_from = std::max(sum.left_from, all[i].left);
    sum.sent_from = std::max({sum.sent_from, all[i].sent, sum.left_from});
  }
  for (const Site* sum : sums)
    if (Site* const product = product_of(sites, *sum)) {
      if (product->key.op == Op::kOutProj) product->sent_from = sum->sent_from;
      product->choices_left_from = std::max(product->choices_left_from, sum->left_from);
    }
}

std::vector<Site*> readers_of(Sites& sites, const Site& writer, const std::string& buffer) {
  std::vector<Site*> readers;
  const auto holds = [&](const std::vector<std::string>& names) {
    return std::ranges::find(names, buffer) != names.end();
  };
  CHECK(holds(writer.writes));
  auto site = std::ranges::find_if(sites, [&](const Site& s) { return &s == &writer; });
  for (CHECK(site != sites.end()), ++site; site != sites.end(); ++site) {
    if (holds(site->reads)) readers.push_back(&*site);
    if (holds(site->writes)) break;
  }
  return readers;
}

std::vector<PlanEntry> plan_entries(const Sites& sites) {
  std::vector<PlanEntry> entries;
  for (const Site& site : sites)
    entries.insert(entries.end(), site.plan.entries().begin(), site.plan.entries().end());
  return entries;
}

std::vector<std::string> kernel_names(Op op) {
  std::vector<std::string> names;
  const auto add_names = [&](const auto& desc) {
    for (const auto& row : kernels_of(desc)) names.emplace_back(row.name);
  };
  [&]<size_t... kKinds>(std::index_sequence<kKinds...>) {
    ((static_cast<size_t>(op) == kKinds ? add_names(std::variant_alternative_t<kKinds, Problem>{})
                                        : void()),
     ...);
  }
  (std::make_index_sequence<kNumOps>());
  return names;
}

int64_t left_floats(const Sites& sites, int64_t tokens) {
  int64_t most = 0;
  for (const Site& site : sites)
    if (const auto* heads = std::get_if<NormQkvDesc>(&site.problem))
      most = std::max(most, std::min<int64_t>(site.readers_take, tokens) * rows_of(*heads));
  return most;
}

int64_t left_choices_bytes(const Sites& sites, int64_t tokens) {
  int64_t most = 0;
  for (const Site& site : sites)
    if (tokens >= site.choices_left_from) {
      const auto& desc = std::get<MoeDownDesc>(site.problem);
      most = std::max(most, 2 * tokens * desc.top_k * desc.hidden + 128);
    }
  return most;
}

int64_t scratch_bytes(const Site& site, const Ctx& cx, int64_t tokens, int64_t out) {
  return std::visit(
      [&](auto desc) {
        desc.tokens = site.key.op == Op::kNormUnembed ? out : tokens;
        return scratch(desc, cx);
      },
      site.problem);
}

Work work_of(const Problem& problem, const StepShape& shape) {
  return std::visit([&](const auto& desc) { return work(desc, shape); }, problem);
}

}  // namespace nibble::ops
