// Site: one call of an op in a model's forward pass. A model states each of its calls once, in the
// order in which they run, before anything is loaded. From that list follow the kernel plan, the
// layouts of weights, working memory, the work of a step, what kernels prepare of loaded weights,
// and the names that doctor, bench and profilers show. The forward pass itself stays eager code,
// which hands each op its site.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "ops/all_reduce/all_reduce.h"
#include "ops/attention/attention.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/embed/embed.h"
#include "ops/mamba2/mamba2.h"
#include "ops/mlp_up/mlp_up.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/norm_linear/norm_linear.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_route/norm_route.h"
#include "ops/norm_unembed/norm_unembed.h"
#include "ops/out_proj/out_proj.h"
#include "ops/output_gate/output_gate.h"
#include "ops/plan.h"
#include "ops/shared_up/shared_up.h"

namespace nibble::ops {

// What a site computes: one of these by kind, in the order of Op. To add a kind: Op and its name,
// here, its table below, and the overloads at the top of site.cc.
using Problem =
    std::variant<EmbedDesc, NormQkvDesc, AttentionDesc, OutProjDesc, MlpUpDesc, NormRouteDesc,
                 MoeUpDesc, MoeDownDesc, NormUnembedDesc, NormLinearDesc, DeltaRuleDesc,
                 OutputGateDesc, SharedUpDesc, AllReduceDesc, Mamba2Desc>;
static_assert(std::variant_size_v<Problem> == kNumOps);
inline Op op_of(const Problem& problem) { return static_cast<Op>(problem.index()); }

// The table of a kind.
inline auto kernels_of(const EmbedDesc&) { return embed_kernels(); }
inline auto kernels_of(const NormQkvDesc&) { return norm_qkv_kernels(); }
inline auto kernels_of(const AttentionDesc&) { return attention_kernels(); }
inline auto kernels_of(const OutProjDesc&) { return out_proj_kernels(); }
inline auto kernels_of(const MlpUpDesc&) { return mlp_up_kernels(); }
inline auto kernels_of(const NormRouteDesc&) { return norm_route_kernels(); }
inline auto kernels_of(const MoeUpDesc&) { return moe_up_kernels(); }
inline auto kernels_of(const MoeDownDesc&) { return moe_down_kernels(); }
inline auto kernels_of(const NormUnembedDesc&) { return norm_unembed_kernels(); }
inline auto kernels_of(const NormLinearDesc&) { return norm_linear_kernels(); }
inline auto kernels_of(const DeltaRuleDesc&) { return delta_rule_kernels(); }
inline auto kernels_of(const OutputGateDesc&) { return output_gate_kernels(); }
inline auto kernels_of(const SharedUpDesc&) { return shared_up_kernels(); }
inline auto kernels_of(const AllReduceDesc&) { return all_reduce_kernels(); }
inline auto kernels_of(const Mamba2Desc&) { return mamba2_kernels(); }

struct Site {
  SiteKey key;
  std::string label;  // site_label(key)
  Problem problem;
  // Buffers by name. "kv" stands for the layer's pages, or its slots.
  std::vector<std::string> reads, writes;
  SitePlan plan = {};
  bool in_rows = false;  // its weight is another site's too, who reads it in kRows

  // Once loaded; before, `weight` says format and shape alone.
  Weight weight = {};
  Norm norm = {};
  Norm q_norm = {}, k_norm = {};    // of heads
  const uint16_t* sinks = nullptr;  // [Q] bf16
  float k_scale = 1, v_scale = 1;   // of pages in E4M3
  const uint16_t* gate = nullptr;   // [H] bf16, of a shared expert
  DeltaRuleWeights delta = {};
  Mamba2Weights mamba = {};
  const float* route_bias = nullptr;  // [E], of NormRouteDesc::sigmoid

  // On GPUs, once loaded: [experts, N] the least exponent of each row of `weight`, where a kernel
  // asks for it and all rows take it; see gpu_matmul/row_exponents.h.
  const uint8_t* row_exponents = nullptr;
  // In steps of up to so many tokens all that read its output finish it (Kernel::takes): of
  // norm_route they choose the experts, of norm_qkv they norm, turn and store the heads.
  int32_t readers_take = 0;
  // Of all_reduce: in steps of so many tokens and more the op behind makes the sum, whose add_norm
  // reads it.
  int64_t left_from = INT64_MAX;
  // Of it and of out_proj in front: in steps of so many tokens and more, while the ranks have room
  // for them, that sends its rows.
  int64_t sent_from = INT64_MAX;
  // Of moe_down in front of it: in those, the rows of its choices are left to that norm, too.
  int64_t choices_left_from = INT64_MAX;
};
using Sites = std::deque<Site>;  // whose addresses stay

// A layer's pages, with the scales that the checkpoint has for them in E4M3.
inline KvLayer pages_of(const Site& site, KvLayer kv) {
  if (kv.k.dtype == DType::kF8E4M3) kv.k_scale = site.k_scale, kv.v_scale = site.v_scale;
  return kv;
}

// Chooses the kernels of every site; of those that have weights loaded in their layout.
// Throws Error(kUnsupported) naming an op that has none.
void plan_sites(Sites& sites, const KernelOptions& options);
// On all ranks at once, once planned: a part of a matrix may have another row than the other ranks'
// parts. Each leaves those sums that all would (Site::left_from), and sends those that all would.
void agree_on_left_sums(Sites& sites, dist::Comm& comm);
std::vector<PlanEntry> plan_entries(const Sites& sites);
// The names of the rows in an op's table, best first.
std::vector<std::string> kernel_names(Op op);

// Those that read what `writer` leaves in `buffer`, in their order: up to the next that writes it.
std::vector<Site*> readers_of(Sites& sites, const Site& writer, const std::string& buffer);

// Of LeftHeads::products, for steps of up to `tokens` tokens; 0 where no norm_qkv leaves any.
int64_t left_floats(const Sites& sites, int64_t tokens);

// Of working memory, for rows that moe_down leaves in steps of up to `tokens` tokens.
int64_t left_choices_bytes(const Sites& sites, int64_t tokens);

// Working memory that its kernels need in steps of up to `tokens` tokens (`out` rows of logits).
int64_t scratch_bytes(const Site& site, const Ctx& cx, int64_t tokens, int64_t out);

// What a step does, for the work in it.
struct StepShape {
  int64_t streams = 1;
  int64_t tokens = 1;     // of each, one after the other
  int64_t context = 0;    // positions before them
  int64_t kv_bytes = 2;   // of an element of keys and values
  int64_t act_bytes = 4;  // of one of h, q, att and u
  bool logits = true;     // of the last token of each
};
struct Work {
  int64_t bytes = 0;  // read and written
  int64_t flops = 0;  // of its products
};
// Every token choosing its experts evenly and by itself.
Work work_of(const Problem& problem, const StepShape& shape);

// Runs `site` by the row planned for a step of `tokens` tokens, unless a profile leaves it out.
template <typename Row, typename... Args>
void run_site(Ctx& cx, const Site& site, int64_t tokens, Args&&... args) {
  if (!cx.begin(site)) {
    cx.left_sum = {};
    return;
  }
  const Row& row = site.plan.row<Row>(tokens);
  CHECK(row.run != nullptr);
  row.run(cx, std::forward<Args>(args)...);
  CHECK(cx.left_sum.site == nullptr);
}

}  // namespace nibble::ops
