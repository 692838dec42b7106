#include "cli/self_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "cli/op_launch.h"
#include "cpu/thread_pool.h"
#include "formats/bf16.h"
#include "formats/fp8.h"
#include "ops/refuse.h"

namespace nibble::cli {

// One row, or two of experts: the first may leave the second what only that reads.
struct SelfCheck::Case {
  CheckedRow what;
  ops::Problem problem;  // small
  int64_t scratch_bytes;
  std::function<OpLaunch(OpLaunches&, bool is_twin)> make;
  bool is_prompt = false;  // its tokens are one sequence's; else one each
};

namespace {

using ops::Op;
using ops::Problem;

// The most tokens of a step; below, few and one are other code of the same row.
constexpr int64_t kMostTokens = 24;
// Keys that attention sees before them: more than gpt-oss's window.
constexpr int64_t kContext = 150;
constexpr int64_t kCols = 256, kRows = 256;

// ---- small problems ----

// Alike in all that rows ask about but size: a matrix of a few units of K and a few row tiles.
template <typename Desc>
void shrink(Desc& d) {
  if constexpr (requires { d.hidden; }) d.hidden = std::min(d.hidden, kCols);
  if constexpr (requires { d.width; }) d.width = std::min(d.width, kRows / 2);
}
void shrink(ops::EmbedDesc& d) {
  d.vocab = std::min(d.vocab, kRows), d.hidden = std::min(d.hidden, kCols);
}
void shrink(ops::NormQkvDesc& d) {
  d.hidden = std::min(d.hidden, kCols);
  d.q_heads /= d.kv_heads, d.kv_heads = 1;
}
void shrink(ops::AttentionDesc& d) {
  const int64_t kv_heads = std::min<int64_t>(d.kv_heads, 2);
  d.q_heads = d.q_heads / d.kv_heads * kv_heads, d.kv_heads = kv_heads;
}
void shrink(ops::OutProjDesc& d) {
  d.hidden = std::min(d.hidden, kRows), d.width = std::min(d.width, kCols);
}
template <typename Desc>
void shrink_experts(Desc& d) {
  shrink<Desc>(d);
  d.experts = std::min(d.experts, 2 * d.top_k);
}
void shrink(ops::MoeUpDesc& d) { shrink_experts(d); }
void shrink(ops::MoeDownDesc& d) { shrink_experts(d); }
void shrink(ops::NormLinearDesc& d) {
  d.hidden = std::min(d.hidden, kCols), d.width = std::min(d.width, kRows);
}
void shrink(ops::DeltaRuleDesc& d) { d.value_heads /= d.key_heads, d.key_heads = 1; }
void shrink(ops::Mamba2Desc& d) { d.heads /= d.groups, d.groups = 1; }
void shrink(ops::OutputGateDesc& d) { d.width = std::min(d.width, kCols); }
void shrink(ops::SharedUpDesc& d) {
  d.hidden = std::min(d.hidden, kCols), d.width = std::min(d.width, kRows / 2);
}
void shrink(ops::NormUnembedDesc& d) {
  d.hidden = std::min(d.hidden, kCols), d.vocab = std::min(d.vocab, 2 * kRows);
}

// The smallest like `desc` that `takes` takes; of `bucket` tokens and its own size it does.
template <typename Desc, typename Takes>
Desc small_problem(const Desc& desc, int64_t bucket, const Takes& takes) {
  Desc small = desc, few = desc;
  small.tokens = few.tokens = std::min(bucket, kMostTokens);
  shrink(small);
  if (takes(small)) return small;
  if (takes(few)) return few;
  few.tokens = std::min<int64_t>(bucket, 1024);
  CHECK(takes(few));
  return few;
}

// Whether `row` computes `desc`, be it slowly.
template <typename Desc, typename Row>
bool takes(const Row& row, const Desc& desc, ops::KernelOptions options) {
  options.any_size = true;
  return row.refuse(desc, options) == nullptr;
}

template <typename Desc>
int64_t scratch_of(const Desc& desc, const ops::Ctx& cx) {
  if constexpr (std::is_same_v<Desc, ops::EmbedDesc>)
    return 0;
  else if constexpr (std::is_same_v<Desc, ops::AttentionDesc>)
    return cx.on_gpu() ? ops::gpu::scratch_bytes(desc) : ops::scratch_bytes(desc, cx.threads());
  else
    return cx.on_gpu() ? ops::gpu::scratch_bytes(desc)
                       : ops::scratch_bytes(desc, desc.tokens, cx.threads());
}

template <typename Desc>
const auto& twin_of(const Desc& desc) {
  const auto table = kernels_of(desc);
  CHECK(std::string_view(table.back().name) == "ref");
  return table.back();
}

// ---- what rounding explains ----

// Rows that round what they multiply to E4M3 (a 16th of a value at most, 2.6% root mean square) or
// to int8 in blocks (1%); a sum of K of them is off by as much of its root mean square, of experts
// twice, and the largest of 10,000 sums by four to five times that. A wrong scale, sign or lane
// makes 50% and more.
constexpr double kCoarseRms = 0.08, kCoarseWorst = 0.6;
// To E2M1 in blocks: 11% of normally distributed values' root mean square.
constexpr double kE2m1Rms = 0.3, kE2m1Worst = 1.5;
// The others differ in bf16's last bit here and there (2^-8 of a value that may be four times the
// root mean square), and in what that does to an expert's second product.
constexpr double kFineRms = 0.008, kFineWorst = 0.05;
// SwiGLU's output is a product of two such sums: where one is large, so is what the other's error
// does to it.
constexpr double kOfSwiglu = 3;

bool is_coarse(std::string_view row) {
  return row.find("a8_") != std::string_view::npos || row.find("int8") != std::string_view::npos;
}

// ---- running ----

struct Output {
  std::string name;
  bool is_e4m3;  // pages: where a value lies between two codes, either may be right
  std::vector<float> values;
};
using Outputs = std::vector<Output>;

Output output_of(const ops::Ctx& cx, const std::string& name, const Tensor& t) {
  Buffer memory;
  const Tensor host = cx.on_host(t, memory);
  std::vector<float> values(static_cast<size_t>(t.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) switch (host.dtype) {
      case DType::kF32:
        values[i] = host.as<float>()[i];
        break;
      case DType::kI32:
        values[i] = static_cast<float>(host.as<int32_t>()[i]);
        break;
      case DType::kBF16:
        values[i] = bf16_to_float(host.as<uint16_t>()[i]);
        break;
      default:
        values[i] = e4m3_to_float(host.as<uint8_t>()[i]);
    }
  return {name, host.dtype == DType::kF8E4M3, std::move(values)};
}

Outputs run_case(ops::Ctx& cx, OpOperands& operands, DType kv, const SelfCheck::Case& a_case,
                 bool is_twin) {
  const int64_t span = a_case.is_prompt ? a_case.what.tokens : 1;
  OpLaunches launches(cx, operands, {.context = kContext, .span = span, .kv = kv});
  const OpLaunch launch = a_case.make(launches, is_twin);
  cx.scratch = {};
  if (!is_twin && a_case.scratch_bytes > 0)
    cx.scratch = {static_cast<std::byte*>(operands.room(a_case.scratch_bytes)),
                  static_cast<size_t>(a_case.scratch_bytes)};
  launch.run(0);
  Outputs outputs;
  for (const auto& [name, tensor] : launch.outputs) outputs.push_back(output_of(cx, name, tensor));
  return outputs;
}

// What is no number is infinitely far off.
void compare(const Outputs& got, const Outputs& want, CheckedRow& row) {
  CHECK(got.size() == want.size());
  const CheckedRow limits = row;
  for (size_t i = 0; i < got.size(); ++i) {
    const std::vector<float>&values = got[i].values, &twins = want[i].values;
    const auto n = static_cast<double>(values.size());
    double squares = 0, off = 0, worst = 0;
    for (size_t j = 0; j < values.size(); ++j) {
      double difference = std::fabs(double{values[j]} - twins[j]);
      if (!std::isfinite(difference)) difference = INFINITY;
      squares += double{twins[j]} * twins[j], off += difference * difference;
      worst = std::max(worst, difference);
    }
    const double rms = std::max(1e-30, std::sqrt(squares / n));
    CheckedRow other = limits;
    if (got[i].is_e4m3) other.most_rms = kCoarseRms, other.most_worst = kCoarseWorst;
    if (got[i].name == "u") other.most_worst *= kOfSwiglu;
    other.output = got[i].name, other.rms = std::sqrt(off / n) / rms, other.worst = worst / rms;
    if (row.output.empty() || other.excess() > row.excess()) row = other;
  }
}

// ---- cases ----

template <typename Row>
std::string row_name(Op op, const Row& row) {
  return std::string(ops::op_name(op)) + "/" + row.name;
}

CheckedRow checked(std::string row, std::string_view weights, int64_t tokens) {
  const bool coarse = is_coarse(row), e2m1 = row.find("a4_") != std::string_view::npos;
  return {.row = std::move(row),
          .weights = std::string(weights),
          .tokens = tokens,
          .most_rms = e2m1     ? kE2m1Rms
                      : coarse ? kCoarseRms
                               : kFineRms,
          .most_worst = e2m1     ? kE2m1Worst
                        : coarse ? kCoarseWorst
                                 : kFineWorst};
}

template <typename Desc>
SelfCheck::Case case_of(const ops::Site& site, const Desc& desc, int64_t bucket,
                        const ops::Ctx& cx) {
  using Row = typename decltype(kernels_of(desc))::value_type;
  const Row& row = site.plan.row<Row>(bucket);
  const Desc small =
      small_problem(desc, bucket, [&](const Desc& d) { return takes(row, d, cx.kernels); });
  return {checked(row_name(site.key.op, row), ops::internal::weights_of(desc), small.tokens), small,
          scratch_of(small, cx), [small, &row](OpLaunches& launches, bool is_twin) {
            return launches.of(small, is_twin ? twin_of(small) : row);
          }};
}

SelfCheck::Case experts_case(const ops::Site& up_site, const ops::Site& down_site, int64_t bucket,
                             const ops::Ctx& cx) {
  const auto& up_row = up_site.plan.row<ops::MoeUpKernel>(bucket);
  const auto& down_row = down_site.plan.row<ops::MoeDownKernel>(bucket);
  const auto down_of = [&](const ops::MoeUpDesc& up) {
    auto down = std::get<ops::MoeDownDesc>(down_site.problem);
    down.hidden = up.hidden, down.width = up.width, down.experts = up.experts;
    down.tokens = up.tokens;
    return down;
  };
  const ops::MoeUpDesc up = small_problem(
      std::get<ops::MoeUpDesc>(up_site.problem), bucket, [&](const ops::MoeUpDesc& d) {
        return takes(up_row, d, cx.kernels) && takes(down_row, down_of(d), cx.kernels);
      });
  const ops::MoeDownDesc down = down_of(up);
  const bool hides_u = cx.on_gpu() && ops::is_experts_fp8(up_row.name);
  return {checked(row_name(Op::kMoeUp, up_row) + " + " + row_name(Op::kMoeDown, down_row),
                  format_name(up.format), up.tokens),
          up, std::max(scratch_of(up, cx), scratch_of(down, cx)),
          [=, &up_row, &down_row](OpLaunches& launches, bool is_twin) {
            const OpLaunch first = launches.of(up, is_twin ? twin_of(up) : up_row),
                           second = launches.of(down, is_twin ? twin_of(down) : down_row, &first);
            OpLaunch both = second;
            both.run = [=](size_t turn) { return first.run(turn) + second.run(turn); };
            if (!hides_u) both.outputs.push_back(first.outputs[0]);
            return both;
          }};
}

// norm_qkv that leaves its heads to attention, and that.
SelfCheck::Case heads_case(const ops::Site& qkv_site, const ops::Site& attention_site,
                           int64_t bucket, const ops::Ctx& cx) {
  const auto& leaves = qkv_site.plan.row<ops::NormQkvKernel>(bucket);
  const auto& attends = attention_site.plan.row<ops::AttentionKernel>(bucket);
  const auto attention_to = [&](const ops::NormQkvDesc& heads) {
    auto desc = std::get<ops::AttentionDesc>(attention_site.problem);
    desc.q_heads = heads.q_heads, desc.kv_heads = heads.kv_heads, desc.tokens = heads.tokens;
    return desc;
  };
  const ops::NormQkvDesc heads = small_problem(
      std::get<ops::NormQkvDesc>(qkv_site.problem), bucket, [&](const ops::NormQkvDesc& d) {
        return takes(leaves, d, cx.kernels) && takes(attends, attention_to(d), cx.kernels);
      });
  const ops::AttentionDesc desc = attention_to(heads);
  return {checked(row_name(Op::kNormQkv, leaves) + " + " + row_name(Op::kAttention, attends),
                  format_name(heads.format), heads.tokens),
          heads, std::max(scratch_of(heads, cx), scratch_of(desc, cx)),
          [=, &leaves, &attends](OpLaunches& launches, bool is_twin) {
            return is_twin ? launches.of(heads, twin_of(heads), desc, twin_of(desc))
                           : launches.of(heads, leaves, desc, attends);
          }};
}

// The most tokens of steps by which all that a site chose is met, one token among them.
std::vector<int64_t> buckets_of(const ops::Site& site) {
  std::vector<int64_t> buckets = {1};
  for (const ops::PlanEntry& entry : site.plan.entries()) buckets.push_back(entry.max_tokens);
  return buckets;
}

}  // namespace

std::vector<SelfCheck::Case> SelfCheck::cases_of(const ops::Sites& sites) {
  std::vector<Case> cases;
  const auto add = [&](Case a_case) {
    const std::pair<std::string, Problem> key{a_case.what.row, a_case.problem};
    if (std::ranges::find(done_, key) != done_.end()) return;
    done_.push_back(key);
    cases.push_back(std::move(a_case));
  };
  const ops::Site *up = nullptr, *qkv = nullptr;
  for (const ops::Site& site : sites) {
    if (site.key.op == Op::kNormQkv) qkv = &site;
    if (site.key.op == Op::kAttention && qkv != nullptr)
      for (const int64_t bucket : buckets_of(*qkv))
        if (bucket <= qkv->readers_take) add(heads_case(*qkv, site, bucket, cx_));
    if (site.key.op == Op::kMoeUp) {
      up = &site;  // goes with the moe_down behind it
    } else if (site.key.op == Op::kMoeDown) {
      CHECK(up != nullptr);
      for (const ops::Site* of : {up, &site})
        for (const int64_t bucket : buckets_of(*of)) add(experts_case(*up, site, bucket, cx_));
    } else {
      for (const int64_t bucket : buckets_of(site))
        std::visit(
            [&](const auto& desc) {
              if constexpr (HasLaunch<std::decay_t<decltype(desc)>>) {
                Case a_case = case_of(site, desc, bucket, cx_);
                const bool adds_prompt = site.key.op == Op::kAttention && a_case.what.tokens > 1;
                add(a_case);
                if (!adds_prompt) return;
                a_case.what.row += " of a prompt", a_case.is_prompt = true;
                add(std::move(a_case));
              } else {
                unchecked_.insert(ops::op_name(site.key.op));
              }
            },
            site.problem);
    }
  }
  return cases;
}

std::vector<CheckedRow> SelfCheck::list(const ops::Sites& sites) {
  std::vector<CheckedRow> rows;
  for (const Case& a_case : cases_of(sites)) rows.push_back(a_case.what);
  return rows;
}

std::vector<CheckedRow> SelfCheck::run(const ops::Sites& sites) {
  std::vector<Case> cases = cases_of(sites);
  std::vector<Outputs> twins(cases.size());
  const auto run_twin = [&](int64_t i, int) {
    cpu::ThreadPool alone(1);
    ops::Ctx host;
    host.pool = &alone;
    host.activations = cx_.activations;
    OpOperands operands(host, OpOperands::Made::kAlike);
    twins[i] = run_case(host, operands, kv_, cases[i], /*is_twin=*/true);
  };
  cx_.pool->parallel_tasks(std::ssize(cases), run_twin);

  OpOperands operands(cx_, OpOperands::Made::kAlike);
  cx_.counters = static_cast<uint32_t*>(operands.room(ops::Ctx::kNumCounters * int64_t{4}));
  std::vector<CheckedRow> rows;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto start = std::chrono::steady_clock::now();
    operands.restart();
    cx_.stream.order.begin_step();
    compare(run_case(cx_, operands, kv_, cases[i], /*is_twin=*/false), twins[i], cases[i].what);
    cases[i].what.launches = cx_.stream.order.launched();
    cases[i].what.milliseconds =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    rows.push_back(cases[i].what);
  }
  return rows;
}

void require_passed(const std::vector<CheckedRow>& rows, const std::string& device) {
  std::string text;
  for (const CheckedRow& r : rows) {
    if (r.passed()) continue;
    char line[400];
    std::snprintf(line, sizeof line,
                  "\n  %s%s%s, %lld tokens: %s is %.3g%% off its twin's root mean square, at worst "
                  "%.3g%%; rounding explains %.3g%% and %.3g%%",
                  r.row.c_str(), r.weights.empty() ? "" : ", weights ", r.weights.c_str(),
                  static_cast<long long>(r.tokens), r.output.c_str(), 100 * r.rms, 100 * r.worst,
                  100 * r.most_rms, 100 * r.most_worst);
    text += line;
  }
  if (text.empty()) return;
  throw Error(
      ErrorKind::kUnsupported,
      "the self check failed: " + device + " computes wrongly by" + text +
          "\nNothing is served by these. Another driver may help; --kernel OP=NAME takes "
          "another row (nibble doctor MODEL lists them, with --self-check what each makes)");
}

}  // namespace nibble::cli
