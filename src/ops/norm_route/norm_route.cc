#include "ops/norm_route/norm_route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "formats/bf16.h"
#include "ops/norm_route/route_scratch.h"
#include "ops/refuse.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

template <cpu::Isa kIsa>
constexpr NormRouteKernel row(const char* name) {
  return {name,
          [](const NormRouteDesc& d, const KernelOptions& o) {
            return refuse_blocked<kIsa>(d.format, o);
          },
          BlockedNormRoute<kIsa>::run};
}

// The last rows: every format and shape.
template <cpu::Isa kIsa>
constexpr NormRouteKernel any_row(const char* name) {
  return {name, [](const NormRouteDesc&, const KernelOptions& o) { return refuse_isa(kIsa, o); },
          BlockedNormRoute<kIsa>::run};
}

const char* refuse_cuda(const NormRouteDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cpu(o)) return reason;
  if (d.format != Format::kBF16) return "needs bf16 weights";
  if (d.hidden % 8 != 0 || d.hidden > 9216) return "needs a multiple of 8 columns, at most 9,216";
  if (d.experts - d.shared > 512 || d.top_k > 32) return "needs at most 512 experts and 32 choices";
  if (d.over_all) return "weighs over all experts, not the chosen";
  if (d.sigmoid.groups > 1) return "chooses among groups of experts";
  return nullptr;
}

// Each block of experts of this kernel norms every token anew: on an H200 the other one is faster
// from 5 tokens on.
const char* refuse_few(const NormRouteDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cuda(d, o)) return reason;
  const bool is_slow = d.tokens > 4 && d.hidden % 32 == 0 && !o.exact && !o.any_size;
  return is_slow ? "norms tokens once per block of experts" : nullptr;
}

const char* refuse_many(const NormRouteDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cuda(d, o)) return reason;
  if (d.hidden % 32 != 0) return "needs a multiple of 32 columns";
  return o.exact ? "--exact: its sums are not those of the kernel for few tokens" : nullptr;
}

// Below, its four launches take longer than two.
constexpr int64_t kFewestByGemm = 1024;

const char* refuse_by_gemm(const NormRouteDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cuda(d, o)) return reason;
  return refuse_gemm<Format::kBF16>(
      {d.format, d.experts - d.shared, d.hidden, d.tokens, kFewestByGemm}, o);
}

const char* refuse_any(const NormRouteDesc& d, const KernelOptions& o) {
  if (const char* reason = refuse_cpu(o)) return reason;  // of any format, float32 among them
  if (d.sigmoid.groups > 32) return "more than 32 groups of experts";
  return d.experts - d.shared <= 1024 && d.top_k <= 32 ? nullptr
                                                       : "more than 1,024 experts or 32 choices";
}

constexpr NormRouteKernel kKernels[] = {
    {"cuda_bf16_few", refuse_few, NIBBLE_CUDA_KERNEL(gpu::norm_route_few)},
    {"sm90_bf16_gemm", refuse_by_gemm, NIBBLE_SM90_KERNEL(gpu::norm_route_gemm), Layout::kRows,
     kAnyTokens},
    {"cuda_bf16_many", refuse_many, NIBBLE_CUDA_KERNEL(gpu::norm_route_many), Layout::kRows,
     kAnyTokens},
    row<cpu::Isa::kAvx512>("avx512_float"),
    row<cpu::Isa::kAvx2>("avx2_float"),
    row<cpu::Isa::kNeon>("neon_float"),
    any_row<cpu::Isa::kAvx512>("avx512_any"),
    any_row<cpu::Isa::kAvx2>("avx2_any"),
    any_row<cpu::Isa::kNeon>("neon_any"),
    any_row<cpu::Isa::kScalar>("plain_any"),
    {"cuda_any", refuse_any, NIBBLE_CUDA_KERNEL(gpu::norm_route_any)},
    {"ref", [](const NormRouteDesc&, const KernelOptions& o) { return refuse_ref(o); },
     ref::norm_route},
};

}  // namespace

std::span<const NormRouteKernel> norm_route_kernels() { return kKernels; }

void norm_route(Ctx& cx, const Site& site, const Tensor& y, const Tensor& h, Routing& routing,
                const Tensor& x, const Tensor& d) {
  const auto& desc = std::get<NormRouteDesc>(site.problem);
  routing.over_all = desc.over_all, routing.sigmoid = desc.sigmoid;
  routing.bias = site.route_bias;
  routing.shared = static_cast<int32_t>(desc.shared);
  routing.shared_gate = desc.shared > 0 ? site.gate : nullptr;
  run_site<NormRouteKernel>(cx, site, routing.num_tokens, y, h, routing, x, d, site.norm,
                            site.weight);
  cx.wrote({y.data, h.data, routing.ids, routing.logits});
}

int64_t bytes(const NormRouteDesc& d, int64_t tokens, int64_t act_bytes) {
  return format_bytes(d.format, d.experts * d.hidden) + 2 * d.experts + 2 * d.hidden +
         tokens * (12 * d.hidden + act_bytes * d.hidden + 8 * d.top_k);
}

int64_t flops(const NormRouteDesc& d, int64_t tokens) { return 2 * tokens * d.experts * d.hidden; }

void choose_experts(const float* logits, int64_t experts, int64_t top_k, int32_t* ids, float* p,
                    bool over_all) {
  // Insertion into a list of K that stays sorted; > keeps the lower id ahead among equals.
  for (int64_t n = 0; n < experts; ++n) {
    int64_t at = n < top_k ? n : top_k;
    while (at > 0 && logits[n] > logits[ids[at - 1]]) --at;
    if (at == top_k) continue;
    for (int64_t i = std::min(n, top_k - 1); i > at; --i) ids[i] = ids[i - 1];
    ids[at] = static_cast<int32_t>(n);
  }
  const auto weight = [&](int64_t e) { return std::exp(double{logits[e]} - logits[ids[0]]); };
  double sum = 0;
  for (int64_t i = 0; i < (over_all ? experts : top_k); ++i) sum += weight(over_all ? i : ids[i]);
  for (int64_t i = 0; i < top_k; ++i) p[i] = static_cast<float>(weight(ids[i]) / sum);
}

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Experts of the groups that do not make it score below all others.
void leave_best_groups(std::vector<double>& scores, const SigmoidRoute& rule) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const int64_t each = std::ssize(scores) / rule.groups;
  std::vector<double> of_groups;
  for (int32_t g = 0; g < rule.groups; ++g) {
    double best = kNone, second = each > 1 ? kNone : 0;
    for (int64_t e = g * each; e < (g + 1) * each; ++e) {
      if (each > 1) second = std::max(second, std::min(best, scores[e]));
      best = std::max(best, scores[e]);
    }
    of_groups.push_back(best + second);
  }
  for (int32_t g = 0; g < rule.groups; ++g) {
    int32_t better = 0;
    for (int32_t other = 0; other < rule.groups; ++other)
      better += of_groups[other] > of_groups[g] || (of_groups[other] == of_groups[g] && other < g);
    if (better >= rule.best_groups) std::fill_n(scores.begin() + g * each, each, kNone);
  }
}

}  // namespace

void choose_experts(const float* logits, const Routing& r, int64_t token) {
  const int32_t experts = r.num_experts - r.shared, top_k = r.top_k - r.shared;
  int32_t* const ids = r.ids + token * r.top_k;
  float* const p = r.p + token * r.top_k;
  if (!r.sigmoid.is_used) return choose_experts(logits, experts, top_k, ids, p, r.over_all);
  std::vector<double> scores(experts);
  for (int32_t e = 0; e < experts; ++e) scores[e] = sigmoid(logits[e]) + r.bias[e];
  leave_best_groups(scores, r.sigmoid);
  double sum = 1e-20;
  for (int32_t k = 0; k < top_k; ++k) {
    const auto best = std::ranges::max_element(scores);  // the first of equals
    ids[k] = static_cast<int32_t>(best - scores.begin());
    *best = -std::numeric_limits<double>::infinity();
    sum += sigmoid(logits[ids[k]]);
  }
  for (int32_t k = 0; k < top_k; ++k)
    p[k] = static_cast<float>(r.sigmoid.scale * sigmoid(logits[ids[k]]) / (r.over_all ? 1 : sum));
}

void add_shared(const Routing& r, int64_t token, const float* h, int64_t hidden) {
  double logit = 0;
  for (int64_t i = 0; r.shared_gate != nullptr && i < hidden; ++i)
    logit += double{h[i]} * bf16_to_float(r.shared_gate[i]);
  for (int32_t i = 1; i <= r.shared; ++i) {
    const int64_t at = (token + 1) * r.top_k - i;
    r.ids[at] = r.num_experts - i;
    r.p[at] = r.shared_gate != nullptr ? static_cast<float>(sigmoid(logit)) : 1;
  }
}

namespace gpu {

bool readers_choose(const Ctx& cx, const Routing& r) {
  if (r.num_tokens == 0 || r.room == nullptr || cx.tap) return false;
  return cx.site != nullptr && r.num_tokens <= cx.site->readers_take;
}

int64_t scratch_bytes(const NormRouteDesc& d) {
  return RouteScratch(Scratch(), d.tokens, d.experts).used_bytes;
}

}  // namespace gpu
}  // namespace nibble::ops
