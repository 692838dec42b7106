#include "cli/projection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "models/model.h"

namespace nibble::cli {
namespace {

enum class Gemm { kNone, kMma, kScaled, kScaledBytes, kScaledNvfp4, kW4a4, kNvfp4a4 };

// What a row costs besides its bytes. Times in microseconds, of each call; clocks of an SM.
struct RowCost {
  std::string_view op, kernel;
  double fixed_us = 0;
  double fixed_us_a_token = 0;  // of up to 8 tokens, whose inputs each block makes ready
  // Passes: a matrix is read again for every so many tokens (rows of an expert); 0: once.
  int pass = 0;
  double pass_us = 0;  // of each pass
  // Issue slots and shared memory, for 544 bytes of a matrix and a pass that is full, or half full.
  double unit_clocks = 0, half_clocks = 0;
  double clocks = 0;  // of issue slots and waits, for 544 bytes of all that it moves
  Gemm gemm = Gemm::kNone;
  double flop_a_clock = 0;  // of attention in prompts, issue and tensor pipe together
  // Of products in a launch of their own, behind the one that moves the bytes.
  double flop_a_clock_behind = 0;
  int launches = 0, launches_of_one = 0;  // of steps of few tokens, and of one; 0: not counted
};

// Fitted to bench/results/2026-11-22-h200-gpt-oss-120b-ops.json; the GEMMs by mma to
// nothing: their loops' bounds, and kReached of the tensor pipe; so are the rows for few tokens of
// other formats, whose launches are taken to cost what MXFP4's do. An SM of an H200 has 28 clocks
// for 544 bytes of its memory's, of a GB10 269: what takes more there, as an expert's 31 for one
// token or 52 of a context, is its instructions' time and hides behind memory here.
constexpr RowCost kCosts[] = {
    {.op = "norm_qkv",
     .kernel = "cuda_w4a16_decode",
     .fixed_us = 1.2,
     .pass = 4,
     .pass_us = 3.2,
     .launches = 2,
     .launches_of_one = 1},
    {.op = "out_proj",
     .kernel = "cuda_w4a16_decode",
     .pass = 4,
     .pass_us = 3.2,
     .launches = 1,
     .launches_of_one = 1},
    {.op = "norm_unembed",
     .kernel = "cuda_w4a16_decode",
     .pass = 8,
     .pass_us = 1.0,
     .unit_clocks = 38,
     .half_clocks = 19,
     .launches = 2,
     .launches_of_one = 1},
    {.op = "norm_qkv",
     .kernel = "cuda_bf16_decode",
     .fixed_us = 2.2,
     .fixed_us_a_token = 0.35,
     .pass = 8,
     .launches = 2,
     .launches_of_one = 1},
    {.op = "out_proj",
     .kernel = "cuda_bf16_decode",
     .fixed_us = 1.7,
     .fixed_us_a_token = 0.35,
     .pass = 8,
     .launches = 1,
     .launches_of_one = 1},
    {.op = "norm_unembed",
     .kernel = "cuda_bf16_decode",
     .fixed_us = 2.2,
     .fixed_us_a_token = 0.35,
     .pass = 8,
     .launches = 2,
     .launches_of_one = 1},
    {.op = "moe_up",
     .kernel = "cuda_w4a16_decode",
     .fixed_us = 2.4,
     .fixed_us_a_token = 0.8,
     .clocks = 31,
     .launches = 1,
     .launches_of_one = 1},
    {.op = "moe_down",
     .kernel = "cuda_w4a16_decode",
     .fixed_us = 2.0,
     .fixed_us_a_token = 0.8,
     .clocks = 31,
     .launches = 2,
     .launches_of_one = 1},
    {.op = "moe_up",
     .kernel = "cuda_w4a16_batch",
     .fixed_us = 9,
     .pass = 16,
     .unit_clocks = 42,
     .half_clocks = 34,
     .launches = 1},
    {.op = "moe_down",
     .kernel = "cuda_w4a16_batch",
     .fixed_us = 9,
     .pass = 16,
     .unit_clocks = 42,
     .half_clocks = 34,
     .launches = 2},
    {.op = "attention",
     .kernel = "cuda_bf16_tokens",
     .fixed_us = 2.4,
     .clocks = 52,
     .flop_a_clock = 1213,
     .launches = 1,
     .launches_of_one = 1},
    {.op = "attention",
     .kernel = "cuda_bf16_spans",
     .fixed_us = 2.4,
     .clocks = 52,
     .flop_a_clock = 1213,
     .launches = 1,
     .launches_of_one = 1},
    {.op = "attention in a window",
     .kernel = "cuda_bf16_tokens",
     .fixed_us = 2.05,
     .clocks = 40,
     .flop_a_clock = 481,
     .launches = 1,
     .launches_of_one = 1},
    {.op = "attention in a window",
     .kernel = "cuda_bf16_spans",
     .fixed_us = 2.05,
     .clocks = 40,
     .flop_a_clock = 481,
     .launches = 1,
     .launches_of_one = 1},
    {.op = "norm_route",
     .kernel = "cuda_bf16_few",
     .fixed_us = 4.6,
     .launches = 1,
     .launches_of_one = 1},
    {.op = "norm_route",
     .kernel = "cuda_bf16_many",
     .fixed_us = 7.8,
     .flop_a_clock_behind = 253,
     .launches = 2},
    {.op = "norm_route", .kernel = "", .fixed_us = 4.6, .flop_a_clock_behind = 253},
    {.op = "embed", .kernel = "cuda_bf16", .fixed_us = 2.5, .launches = 1, .launches_of_one = 1},
    {.op = "norm_linear",
     .kernel = "cuda_bf16_decode",
     .fixed_us = 2.2,
     .fixed_us_a_token = 0.35,
     .pass = 8},
    {.op = "norm_qkv",
     .kernel = "cuda_bf16_rows",
     .fixed_us = 4,
     .fixed_us_a_token = 0.35,
     .pass = 8},
    // Fitted to the H200's figures in docs/lab/delta-net.md, and Mamba2's taken to be as those.
    {.op = "delta_rule", .kernel = "", .fixed_us = 5.5, .clocks = 33},
    {.op = "delta_rule in a prompt", .kernel = "cuda_chunks", .fixed_us = 26, .clocks = 245},
    {.op = "delta_rule in a prompt", .kernel = "", .fixed_us = 6, .clocks = 56},
    {.op = "mamba2", .kernel = "", .fixed_us = 5.5, .clocks = 33},
    {.op = "mamba2 in a prompt", .kernel = "cuda_chunks", .fixed_us = 26, .clocks = 245},
    {.op = "mamba2 in a prompt", .kernel = "", .fixed_us = 6, .clocks = 56},
    {.op = "output_gate", .kernel = "", .fixed_us = 2.5, .clocks = 35},
    // One token's latency is an H200's; the rest is a guess.
    {.op = "attention", .kernel = "cuda_any", .fixed_us = 28, .clocks = 70, .flop_a_clock = 300},
    {.op = "norm_qkv", .kernel = "cuda_w4a16_gemm", .fixed_us = 7, .gemm = Gemm::kMma},
    {.op = "norm_qkv", .kernel = "cuda_bf16_gemm", .fixed_us = 7, .gemm = Gemm::kMma},
    {.op = "norm_qkv", .kernel = "sm121_w4a8_gemm", .fixed_us = 10, .gemm = Gemm::kScaled},
    {.op = "norm_qkv", .kernel = "sm121_w8a8_gemm", .fixed_us = 12, .gemm = Gemm::kScaledBytes},
    {.op = "norm_qkv", .kernel = "sm121_nvfp4a8_gemm", .fixed_us = 13, .gemm = Gemm::kScaledNvfp4},
    {.op = "norm_qkv", .kernel = "sm121_w4a4_gemm", .fixed_us = 10, .gemm = Gemm::kW4a4},
    {.op = "norm_qkv", .kernel = "sm121_nvfp4a4_gemm", .fixed_us = 13, .gemm = Gemm::kNvfp4a4},
    {.op = "", .kernel = "sm121_w4a4_gemm", .fixed_us = 8, .gemm = Gemm::kW4a4},
    {.op = "", .kernel = "sm121_nvfp4a4_gemm", .fixed_us = 9, .gemm = Gemm::kNvfp4a4},
    {.op = "", .kernel = "cuda_w4a16_gemm", .fixed_us = 5, .gemm = Gemm::kMma},
    {.op = "", .kernel = "cuda_bf16_gemm", .fixed_us = 5, .gemm = Gemm::kMma},
    {.op = "", .kernel = "cuda_w8a16_gemm", .fixed_us = 8, .gemm = Gemm::kMma},
    {.op = "", .kernel = "cuda_nvfp4_gemm", .fixed_us = 8, .gemm = Gemm::kMma},
    {.op = "", .kernel = "sm121_w4a8_gemm", .fixed_us = 8, .gemm = Gemm::kScaled},
    {.op = "", .kernel = "sm121_w8a8_gemm", .fixed_us = 9, .gemm = Gemm::kScaledBytes},
    {.op = "", .kernel = "sm121_nvfp4a8_gemm", .fixed_us = 9, .gemm = Gemm::kScaledNvfp4},
    {.op = "", .kernel = "cuda_nvfp4_one", .fixed_us = 2.4},
    {.op = "", .kernel = "cuda_nvfp4_decode", .fixed_us = 2.4, .fixed_us_a_token = 0.8},
    {.op = "", .kernel = "cuda_w8a16_decode", .fixed_us = 2.4, .fixed_us_a_token = 0.8, .pass = 8},
};

// Of the read rate, what rows reach on an H200 whose instructions do not bind: those in BF16 of one
// token, 0.95 to 1.01 of it in the largest. On a GB10 products of 151 to 286 MB by one vector
// were published at 0.91 to 1.03 of the rate here.
constexpr double kShare = 0.96;
// Of the tensor pipe's rate that a GEMM's inner loop reaches, an assumption; clocks of a work item
// before and behind that loop.
constexpr double kReached = 0.85, kItemClocks = 3000;
// Clocks of issue slots and shared memory for a stage of 64 k, by groups of 16 slots: the loops of
// tools/loop_bounds.json with the warps that fill.
constexpr std::array<double, 5> kWidths = {16, 32, 64, 96, 128};
using Clocks = std::array<double, 5>;
struct GemmCost {
  int tile_rows;
  double ProjectionDevice::*flop;
  Clocks clocks;
  double rounded = 0;  // bytes of a value that a launch of its own rounds
};
GemmCost gemm_cost(Gemm gemm) {
  switch (gemm) {
    case Gemm::kScaled:
      return {256, &ProjectionDevice::qmma, {300, 335, 420, 490, 580}, 1};
    case Gemm::kScaledBytes:
      return {256, &ProjectionDevice::qmma, {425, 470, 565, 660, 755}, 1};
    case Gemm::kScaledNvfp4:
      return {256, &ProjectionDevice::qmma, {850, 890, 970, 1050, 1130}, 1};
    case Gemm::kW4a4:
      return {256, &ProjectionDevice::omma, {257, 285, 342, 399, 456}, 0.53};
    case Gemm::kNvfp4a4:
      return {256, &ProjectionDevice::omma, {292, 321, 378, 435, 492}, 0.56};
    default:
      return {128, &ProjectionDevice::hmma, {500, 520, 590, 660, 770}};
  }
}

const RowCost* find_cost(std::string_view op, std::string_view kernel) {
  for (const RowCost& cost : kCosts)
    if ((cost.kernel == kernel || cost.kernel.empty()) && (cost.op == op || cost.op.empty()))
      return &cost;
  return nullptr;
}

// A matrix, and how many tokens meet each of its `count` copies.
struct Matrix {
  double rows = 0, cols = 0, bytes = 0;
  double tokens = 0;               // of the step, at each copy that is met by all of them
  double experts = 1, chosen = 1;  // a token meets `chosen` of `experts`
  bool is_grouped() const { return experts > 1; }
};

Matrix matrix(const ops::NormQkvDesc& d, const ops::StepShape& s) {
  const int64_t rows = ((d.has_gates ? 2 : 1) * d.q_heads + 2 * d.kv_heads) * d.head_dim;
  return {static_cast<double>(rows), static_cast<double>(d.hidden),
          static_cast<double>(format_bytes(d.format, rows * d.hidden)),
          static_cast<double>(s.streams * s.tokens)};
}
Matrix matrix(const ops::OutProjDesc& d, const ops::StepShape& s) {
  return {static_cast<double>(d.hidden), static_cast<double>(d.width),
          static_cast<double>(format_bytes(d.format, d.hidden * d.width)),
          static_cast<double>(s.streams * s.tokens)};
}
Matrix matrix(const ops::NormUnembedDesc& d, const ops::StepShape& s) {
  return {static_cast<double>(d.vocab), static_cast<double>(d.hidden),
          static_cast<double>(format_bytes(d.format, d.vocab * d.hidden)),
          static_cast<double>(s.streams)};
}
Matrix matrix(const ops::NormLinearDesc& d, const ops::StepShape& s) {
  return {static_cast<double>(d.width), static_cast<double>(d.hidden),
          static_cast<double>(format_bytes(d.format, d.width * d.hidden)),
          static_cast<double>(s.streams * s.tokens)};
}
Matrix matrix(const ops::SharedUpDesc& d, const ops::StepShape& s) {
  return {static_cast<double>(d.rows()), static_cast<double>(d.hidden),
          static_cast<double>(format_bytes(d.format, d.rows() * d.hidden)),
          static_cast<double>(s.streams * s.tokens)};
}
Matrix matrix(const ops::MlpUpDesc& d, const ops::StepShape& s) {
  return {static_cast<double>(d.rows()), static_cast<double>(d.hidden),
          static_cast<double>(format_bytes(d.format, d.rows() * d.hidden)),
          static_cast<double>(s.streams * s.tokens)};
}
Matrix expert(double rows, double cols, double bytes, int64_t experts, int64_t top_k,
              const ops::StepShape& s) {
  return {rows,
          cols,
          bytes,
          static_cast<double>(s.streams * s.tokens),
          static_cast<double>(experts),
          static_cast<double>(top_k)};
}
Matrix matrix(const ops::MoeUpDesc& d, const ops::StepShape& s) {
  return expert(d.rows(), d.hidden, format_bytes(d.format, d.rows() * d.hidden), d.experts, d.top_k,
                s);
}
Matrix matrix(const ops::MoeDownDesc& d, const ops::StepShape& s) {
  return expert(d.hidden, d.width, format_bytes(d.format, d.hidden * d.width), d.experts, d.top_k,
                s);
}
template <typename Desc>
Matrix matrix(const Desc&, const ops::StepShape&) {
  return {};
}

// Sum over all copies of cost(tokens that meet it): of an expert as many as independent even
// choices give.
template <typename Cost>
double over_copies(const Matrix& m, const Cost& cost) {
  if (!m.is_grouped()) return cost(m.tokens);
  const double p = m.chosen / m.experts, n = m.tokens, mean = n * p;
  const double deviation = std::sqrt(mean * (1 - p));
  const auto first = static_cast<int64_t>(std::max(1.0, std::floor(mean - 6 * deviation)));
  const auto last = static_cast<int64_t>(std::min(n, std::ceil(mean + 6 * deviation) + 1));
  double sum = 0;
  for (int64_t k = first; k <= last; ++k) {
    const double x = static_cast<double>(k);
    const double log = std::lgamma(n + 1) - std::lgamma(x + 1) - std::lgamma(n - x + 1) +
                       x * std::log(p) + (n - x) * std::log1p(-p);
    sum += std::exp(log) * cost(x);
  }
  return m.experts * sum;
}

// Of a sequence's step: more are a prompt.
constexpr int64_t kMostDrafted = 8;

std::string_view kind_of(const ops::Problem& problem, const ops::StepShape& shape) {
  const auto* attention = std::get_if<ops::AttentionDesc>(&problem);
  if (attention != nullptr && attention->window > 0) return "attention in a window";
  if (shape.tokens > kMostDrafted) {
    if (std::holds_alternative<ops::DeltaRuleDesc>(problem)) return "delta_rule in a prompt";
    if (std::holds_alternative<ops::Mamba2Desc>(problem)) return "mamba2 in a prompt";
  }
  return ops::op_name(ops::op_of(problem));
}

double ceil_div(double a, double b) { return std::ceil(a / b); }

// What a GEMM's call moves and bytes() does not count: inputs that are rounded are written and read
// once more, a norm's output is read, experts' outputs are written and read before they are added
// up. u is E4M3 between experts in MXFP4.
double bytes_between(const RowCost& c, ops::Op op, const Matrix& m) {
  const bool is_down = op == ops::Op::kMoeDown;
  const bool has_e4m3_u = c.gemm == Gemm::kScaled && (is_down || op == ops::Op::kMoeUp);
  const bool has_norm = op == ops::Op::kNormQkv || op == ops::Op::kNormLinear ||
                        op == ops::Op::kMlpUp || op == ops::Op::kNormUnembed;
  const double of_input = 2 * gemm_cost(c.gemm).rounded + (has_norm ? 2 : 0);
  double bytes = m.tokens * m.cols * of_input;
  if (is_down) {
    const double slots = m.tokens * m.chosen;
    bytes = slots * (m.cols * (has_e4m3_u ? -1 : of_input) + m.rows * 4);
  } else if (has_e4m3_u) {
    bytes -= m.tokens * m.chosen * m.rows / 2;
  }
  return bytes;
}

// Clocks of all SMs together: {tensor, issue} of a GEMM by mma.
std::pair<double, double> gemm_clocks(const RowCost& c, const Matrix& m,
                                      const ProjectionDevice& device) {
  const GemmCost gemm = gemm_cost(c.gemm);
  const double stages = m.cols / 64, row_tiles = ceil_div(m.rows, gemm.tile_rows);
  const double flop = device.*gemm.flop;
  const auto clocks = [&](double slots, bool is_tensor) {
    const double tiles = ceil_div(slots, 128), width = slots / tiles;
    size_t w = 0;
    while (w + 1 < kWidths.size() && kWidths[w] < width) ++w;
    const double tensor = 2 * gemm.tile_rows * kWidths[w] * 64 / flop / kReached;
    const double stage = is_tensor ? tensor : gemm.clocks[w];
    return tiles * row_tiles * (stages * stage + kItemClocks);
  };
  return {over_copies(m, [&](double slots) { return clocks(slots, true); }),
          over_copies(m, [&](double slots) { return clocks(slots, false); })};
}

// The GEMMs of MXFP4 and BF16, whose epilogues turn q and k.
int launches_of_gemm(const RowCost& c, std::string_view op) {
  const bool is_down = op == "moe_down", has_norm = op == "norm_qkv" || op == "norm_unembed";
  const bool is_counted = has_norm || is_down || op == "moe_up" || op == "out_proj";
  if (!is_counted || (c.gemm != Gemm::kScaled && c.gemm != Gemm::kW4a4 &&
                      c.kernel != "cuda_w4a16_gemm" && c.kernel != "cuda_bf16_gemm"))
    return 0;
  const bool rounds = gemm_cost(c.gemm).rounded > 0 && !(is_down && c.gemm == Gemm::kScaled);
  return 1 + rounds + has_norm + is_down;
}

int launches_of(const RowCost& c, std::string_view op, int64_t tokens) {
  constexpr int64_t kMostCounted = 256;  // beyond, norm_route has more
  if (tokens > kMostCounted) return 0;
  if (c.gemm != Gemm::kNone) return launches_of_gemm(c, op);
  return tokens == 1 && c.launches_of_one > 0 ? c.launches_of_one : c.launches;
}

OpTime time_of(const RowCost& c, const ops::Problem& problem, const ops::StepShape& shape,
               const ProjectionDevice& device) {
  const ops::Work work = ops::work_of(problem, shape);
  const Matrix m = std::visit([&](const auto& d) { return matrix(d, shape); }, problem);
  const double machine = device.clock * device.gpu.num_sms;
  const double tokens = static_cast<double>(shape.streams * shape.tokens);
  const auto flops = static_cast<double>(work.flops);
  OpTime t;
  t.bytes = static_cast<double>(work.bytes);
  t.fixed = (c.fixed_us + c.fixed_us_a_token * std::min(tokens, 8.0)) * 1e-6;
  if (c.gemm != Gemm::kNone) {
    const auto [tensor, issue] = gemm_clocks(c, m, device);
    t.tensor = tensor / machine, t.issue = issue / machine;
    t.bytes += bytes_between(c, ops::op_of(problem), m);
  } else if (c.flop_a_clock > 0 && shape.tokens > 1) {
    t.issue = flops / (c.flop_a_clock * machine);
    t.tensor = flops / (device.hmma * kReached * machine);
  } else if (c.clocks > 0) {
    t.issue = t.bytes / 544 * c.clocks / machine;
  } else if (c.flop_a_clock_behind > 0) {
    t.fixed += flops / (c.flop_a_clock_behind * machine);
  } else if (c.pass > 0 && m.rows > 0) {
    const double passes = over_copies(m, [&](double n) { return ceil_div(n, c.pass); });
    if (!m.is_grouped()) {
      t.fixed += passes * c.pass_us * 1e-6;
      t.bytes += (passes - 1) * m.bytes;
    }
    const auto clocks = [&](double n) {
      const double whole = std::floor(n / c.pass), rest = n - whole * c.pass;
      return whole * c.unit_clocks + (rest == 0              ? 0
                                      : rest <= c.pass / 2.0 ? c.half_clocks
                                                             : c.unit_clocks);
    };
    t.issue = over_copies(m, clocks) * m.bytes / 544 / machine;
  }
  t.memory = t.bytes / (device.bandwidth * kShare);
  const auto* const qkv = std::get_if<ops::NormQkvDesc>(&problem);
  const bool has_plain_heads =
      qkv == nullptr || (qkv->head_dim == 64 && !qkv->norms_heads && !qkv->has_gates);
  if (has_plain_heads)
    t.launches = launches_of(c, ops::op_name(ops::op_of(problem)), shape.streams * shape.tokens);
  return t;
}

}  // namespace

std::optional<ProjectionDevice> find_projection_device(std::string_view name) {
  if (name == "gb10")
    return ProjectionDevice{.gpu = cuda::gb10(),
                            .bandwidth = 233e9,
                            .clock = 2.4e9,
                            .hmma = 1024,
                            .qmma = 2048,
                            .omma = 4096};
  if (name == "h200")
    return ProjectionDevice{
        .gpu = cuda::h200(), .bandwidth = 4464e9, .clock = 1.755e9, .hmma = 4096};
  return std::nullopt;
}

std::string kernel_at(const std::vector<ops::PlanEntry>& plan, const std::string& site,
                      int64_t tokens) {
  for (const ops::PlanEntry& entry : plan)
    if (ops::site_label(entry.site) == site && entry.min_tokens <= tokens &&
        tokens <= entry.max_tokens)
      return entry.kernel;
  return "";
}

int launches_of(std::string_view op, std::string_view kernel, int64_t tokens) {
  const RowCost* const cost = find_cost(op, kernel);
  return cost == nullptr ? 0 : launches_of(*cost, op, tokens);
}

int launches_of(const std::vector<ProjectedOp>& step) {
  int sum = 0;
  for (const ProjectedOp& op : step) {
    if (op.time.launches == 0) return 0;
    sum += op.time.launches;
  }
  return sum;
}

double OpTime::seconds() const { return fixed + std::max({memory, tensor, issue}); }
const char* OpTime::bound() const {
  if (memory >= tensor && memory >= issue) return "memory";
  return tensor >= issue ? "tensor" : "issue";
}

std::optional<OpTime> project(const ops::Problem& problem, std::string_view kernel,
                              const ops::StepShape& shape, const ProjectionDevice& device) {
  const RowCost* const cost = find_cost(kind_of(problem, shape), kernel);
  if (cost == nullptr) return std::nullopt;
  return time_of(*cost, problem, shape, device);
}

std::vector<ProjectedOp> project_step(const std::string& model, const DenseFormats& dense,
                                      ops::ActFormat activations, const ops::StepShape& shape,
                                      const ProjectionDevice& device) {
  ops::Ctx cx;
  cx.kernels.gpu = device.gpu;
  cx.kernels.activations = activations;
  const ops::Sites sites = planned_sites(cx, model, dense);
  const std::vector<ops::StepShape> shapes = shapes_at(sites, shape);
  std::vector<ProjectedOp> projected;
  for (size_t i = 0; i < sites.size(); ++i) {
    const ops::Site& site = sites[i];
    const bool is_head = site.key.op == ops::Op::kNormUnembed;
    if (is_head && !shape.logits) continue;
    const std::string op = ops::op_name(site.key.op),
                      kernel = kernel_at(site.plan.entries(), site.label,
                                         shapes[i].streams * (is_head ? 1 : shapes[i].tokens));
    const std::optional<OpTime> time = project(site.problem, kernel, shapes[i], device);
    if (!time)
      throw Error(ErrorKind::kUnsupported,
                  "no cost is known of " + op + " by " + kernel + " on " + device.gpu.name);
    auto same = std::ranges::find_if(projected, [&](const ProjectedOp& p) {
      return p.op == op && p.kernel == kernel && p.each == time->bytes;
    });
    if (same == projected.end())
      same = projected.insert(same, ProjectedOp{op, kernel, 0, time->bytes, {}});
    ++same->sites;
    same->time.bytes += time->bytes, same->time.memory += time->memory;
    same->time.tensor += time->tensor, same->time.issue += time->issue;
    same->time.fixed += time->fixed, same->time.launches += time->launches;
  }
  return projected;
}

}  // namespace nibble::cli
