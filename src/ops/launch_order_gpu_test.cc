// Ops strung together in orders that gpt-oss never has, with and without dependent launches: the
// same bits, many times over. A kernel that reads before its wait what the kernels in front have
// not written yet shows here.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/graph.h"
#include "ops/gpu_test_problem.h"
#include "ops/prepare.h"

namespace nibble::ops {
namespace {

constexpr int64_t kHidden = 1024, kHeads = 16, kKvHeads = 2, kDim = 64;
constexpr int64_t kExperts = 16, kTopK = 4, kWidth = 128;
constexpr int32_t kContext = 200, kPage = 16, kMaxPages = 16;
constexpr int kReplays = 40, kRandomChains = 6;

// Of delta nets, whose outputs are as wide as attention's.
constexpr DeltaRuleDesc kDelta{4, 8, 128, 128, 4};
// And of Mamba2 layers, whose inputs are the wider ones.
constexpr Mamba2Desc kMamba2{16, 4, 64, 128, 4};
constexpr int64_t kInputs = kMamba2.width();
static_assert(kInputs >= kDelta.width() && kMamba2.inner() == kHeads * kDim);

// What a chain is made of. kDense stands where a dense MLP would, kShared beside the experts; kIn
// and kRule or kMamba where attention would.
enum class Link {
  kQkv,
  kAttention,
  kOut,
  kOutAgain,
  kDense,
  kRoute,
  kShared,
  kUp,
  kDown,
  kIn,
  kRule,
  kGate,
  kSharedUp,
  kMamba
};
using Chain = std::vector<Link>;

std::string text_of(const Chain& chain) {
  constexpr const char* kNames[] = {"qkv",   "attention", "out",       "out again", "dense",
                                    "route", "shared",    "up",        "down",      "in",
                                    "rule",  "gate",      "shared up", "mamba"};
  std::string text;
  for (const Link link : chain) text += std::string(kNames[static_cast<int>(link)]) + " ";
  return text;
}

struct Case {
  int32_t tokens;
  Format dense;
  ActFormat activations;
};

// Weights, one of each kind, and buffers; runs chains of sites.
class Chained {
 public:
  explicit Chained(const Case& c) : case_(c) {
    gpu_.cx.kernels.activations = c.activations;
    const Format experts = c.dense == Format::kNvfp4 ? Format::kNvfp4 : Format::kMxfp4;
    add_weight(Link::kQkv, NormQkvDesc{kHidden, kHeads, kKvHeads, kDim, c.dense}, 1,
               (kHeads + 2 * kKvHeads) * kDim, kHidden, c.dense);
    for (const Link link : {Link::kOut, Link::kDense})
      add_weight(link, OutProjDesc{kHidden, kHidden, c.dense}, 1, kHidden, kHidden, c.dense);
    add_weight(Link::kRoute, NormRouteDesc{kHidden, kExperts, kTopK}, 1, kExperts, kHidden,
               Format::kBF16);
    add_weight(Link::kUp,
               MoeUpDesc{.hidden = kHidden,
                         .width = kWidth,
                         .experts = kExperts,
                         .top_k = kTopK,
                         .format = experts,
                         .act = kClampedSwiglu},
               kExperts, 2 * kWidth, kHidden, experts);
    add_weight(Link::kDown,
               MoeDownDesc{.hidden = kHidden,
                           .width = kWidth,
                           .experts = kExperts,
                           .top_k = kTopK,
                           .format = experts,
                           .act = kClampedSwiglu},
               kExperts, kHidden, kWidth, experts);
    add_weight(Link::kIn, NormLinearDesc{kHidden, kInputs, c.dense}, 1, kInputs, kHidden, c.dense);
    add_weight(Link::kSharedUp, SharedUpDesc{kHidden, kWidth, c.dense}, 1, 2 * kWidth, kHidden,
               c.dense);
    make_buffers();
    make_step();
    make_states();
  }

  // What all buffers hold after the chain, each time that it runs.
  void expect_the_same_bits(const Chain& chain) {
    SCOPED_TRACE(testing::Message()
                 << text_of(chain) << "with " << case_.tokens << " tokens, "
                 << format_name(case_.dense) << ", " << act_format_name(case_.activations));
    Sites sites = plan(chain);
    const Buffer prepared = prepare_weights(gpu_.cx, sites);
    int64_t most = 1;
    for (const Site& site : sites)
      most = std::max(most, scratch_bytes(site, gpu_.cx, case_.tokens, case_.tokens));
    const Tensor scratch = gpu_.output(DType::kU8, {most});
    gpu_.cx.scratch = {static_cast<std::byte*>(scratch.data), static_cast<size_t>(most)};

    gpu_.cx.stream.order.allow_dependent(false);
    const cuda::Graph apart = record(chain, sites);
    const auto want = replay(apart);
    gpu_.cx.stream.order.allow_dependent(true);
    const cuda::Graph dependent = record(chain, sites);
    for (int i = 0; i < kReplays; ++i) ASSERT_EQ(replay(dependent), want) << "replay " << i;
    EXPECT_TRUE(gpu_.counters_are_zero());
  }

 private:
  struct Loaded {
    Problem problem;
    Weight weight;
  };

  void add_weight(Link link, const Problem& problem, int64_t experts, int64_t rows, int64_t cols,
                  Format format) {
    TestWeight w(random_, format, experts, rows, cols);
    Sites one;
    one.push_back({{op_of(problem)}, "", problem, {}, {"routing"}});
    plan_sites(one, gpu_.cx.kernels);
    if (one[0].plan.layout() != Layout::kRows) w.pack(one[0].plan.layout());
    loaded_[link] = {problem, gpu_.weight(w)};
  }

  void make_buffers() {
    const int64_t t = case_.tokens;
    for (Tensor* f32 : {&x_, &y_, &d_, &shared_}) *f32 = gpu_.output(DType::kF32, {t, kHidden});
    h_ = gpu_.output(DType::kBF16, {t, kHidden});
    q_ = gpu_.output(DType::kBF16, {t, kHeads * kDim});
    att_ = gpu_.output(DType::kBF16, {t, kHeads * kDim});
    u_ = gpu_.output(DType::kBF16, {t * kTopK, kWidth});
    shared_u_ = gpu_.output(DType::kBF16, {t, kWidth});
    qkvz_ = gpu_.output(DType::kF32, {t, kInputs});
    gates_ = gpu_.tensor(Floats(random_, t, 2 * kDelta.value_heads), DType::kF32);
    q_gate_ = gpu_.tensor(Floats(random_, t, kHeads * kDim), DType::kF32);
    TestRouting like(t, kExperts, kTopK);
    routing_ = gpu_.routing_output(like);
    room_ = gpu_.output(DType::kF32, {1, kExperts});
    routing_.room = room_.as<float>();
    x0_ = gpu_.tensor(Floats(random_, t, kHidden, DType::kF32), DType::kF32);
    d0_ = gpu_.tensor(Floats(random_, t, kHidden, DType::kF32), DType::kF32);
    att0_ = gpu_.tensor(Floats(random_, t, kHidden, DType::kBF16), DType::kBF16);
    const std::vector<uint16_t> ones(kHidden, bf16_from_float(1));
    norm_ = {gpu_.array(ones), 1e-5f};
  }

  // Read from slots that no step writes.
  void make_states() {
    const int32_t t = case_.tokens;
    std::vector<int32_t> from, to;
    for (int32_t i = 0; i < t; ++i) from.push_back(i), to.push_back(t + i);
    const auto slots = [&](std::initializer_list<int64_t> of) {
      Tensor all = make_tensor(nullptr, DType::kF32, of);
      all.data =
          gpu_.tensor(Floats(random_, all.dim(0), all.num_elements() / all.dim(0)), DType::kF32)
              .data;
      return all;
    };
    states_ = {slots({2 * t, kDelta.value_heads, kDelta.key_dim, kDelta.value_dim}),
               slots({2 * t, kDelta.taps - 1, kDelta.channels()}), gpu_.array(from),
               gpu_.array(to)};
    mamba_states_ = {slots({2 * t, kMamba2.heads, kMamba2.state_dim, kMamba2.head_dim}),
                     slots({2 * t, kMamba2.taps - 1, kMamba2.channels()}), gpu_.array(from),
                     gpu_.array(to)};
    const auto floats = [&](int64_t n) { return gpu_.array(random_.normals(n)); };
    mamba_ = {floats(kMamba2.channels() * kMamba2.taps),
              floats(kMamba2.channels()),
              floats(kMamba2.heads),
              floats(kMamba2.heads),
              floats(kMamba2.heads),
              floats(kMamba2.inner()),
              1e-5f};
    delta_ = {floats(kDelta.channels() * kDelta.taps), floats(kDelta.value_heads),
              floats(kDelta.value_heads), floats(kDelta.value_dim), 1e-6f};
    gate_ = gpu_.array(random_.bf16s(kHidden, 0.03f));
  }

  // Every token the next of a sequence of its own.
  void make_step() {
    const int32_t t = case_.tokens;
    std::vector<int32_t> positions, table;
    std::vector<Span> spans;
    for (int32_t i = 0; i < t; ++i) {
      positions.push_back(kContext);
      spans.push_back({i, 1, kContext, i});
      for (int32_t p = 0; p < kMaxPages; ++p) table.push_back(i * kMaxPages + p);
    }
    step_ = {.num_tokens = t,
             .num_spans = t,
             .num_out = t,
             .max_context = kContext + 1,
             .positions = gpu_.array(positions),
             .spans = gpu_.array(spans)};
    const auto side = [&] {
      const Floats values(random_, int64_t{t} * kMaxPages * kKvHeads * kPage, kDim, DType::kBF16);
      const Tensor flat = gpu_.tensor(values, DType::kBF16);
      return make_tensor(flat.data, DType::kBF16, {t * kMaxPages, kKvHeads, kPage, kDim});
    };
    kv_ = {side(), side(), gpu_.array(table), kMaxPages, kPage};
    cos_sin_ = gpu_.tensor(Floats(random_, t, kDim, DType::kF32), DType::kF32);
  }

  Sites plan(const Chain& chain) {
    Sites sites;
    const auto add = [&](Link kind, std::vector<std::string> reads,
                         std::vector<std::string> writes) {
      const Problem problem = kind == Link::kAttention
                                  ? Problem(AttentionDesc{kHeads, kKvHeads, kDim})
                              : kind == Link::kRule  ? Problem(kDelta)
                              : kind == Link::kMamba ? Problem(kMamba2)
                              : kind == Link::kGate  ? Problem(OutputGateDesc{kHeads * kDim})
                                                     : loaded_.at(kind).problem;
      const SiteKey key(op_of(problem), static_cast<int>(sites.size()));
      sites.push_back({key, site_label(key), problem, std::move(reads), std::move(writes)});
      sites.back().delta = delta_;
      sites.back().mamba = mamba_;
      sites.back().gate = gate_;
      if (!loaded_.contains(kind)) return;
      sites.back().weight = loaded_.at(kind).weight;
      sites.back().norm = norm_;
    };
    for (const Link link : chain) {
      if (link == Link::kQkv) add(link, {"x", "d"}, {"y", "h", "q", "kv"});
      if (link == Link::kAttention) add(link, {"q", "kv"}, {"att"});
      if (link == Link::kOut || link == Link::kOutAgain) add(Link::kOut, {"att"}, {"d"});
      if (link == Link::kDense) add(link, {"h"}, {"d"});
      if (link == Link::kShared) add(Link::kDense, {"h"}, {"shared"});
      if (link == Link::kRoute) add(link, {"x", "d"}, {"y", "h", "routing"});
      if (link == Link::kUp) add(link, {"h", "routing"}, {"u"});
      if (link == Link::kDown) add(link, {"u", "routing"}, {"d"});
      if (link == Link::kIn) add(link, {"x", "d"}, {"y", "h", "qkvz"});
      if (link == Link::kRule || link == Link::kMamba) add(link, {"qkvz", "kv"}, {"att", "kv"});
      if (link == Link::kGate) add(link, {"att"}, {"att"});
      if (link == Link::kSharedUp) add(link, {"h"}, {"shared_u"});
    }
    plan_sites(sites, gpu_.cx.kernels);
    return sites;
  }

  cuda::Graph record(const Chain& chain, const Sites& sites) {
    return {gpu_.cx.stream, [&] { run(chain, sites); }};
  }

  void run(const Chain& chain, const Sites& sites) {
    Ctx& cx = gpu_.cx;
    cx.stream.order.begin_step();
    Tensor from = x_, to = y_;  // of the residual stream
    Routing routing = routing_;
    for (size_t i = 0; i < chain.size(); ++i) {
      const Site& site = sites[i];
      switch (chain[i]) {
        case Link::kQkv:
          norm_qkv(cx, site, {q_, h_, to}, kv_, from, d_, cos_sin_, step_);
          std::swap(from, to);
          break;
        case Link::kAttention:
          attention(cx, site, att_, q_, kv_, 0.125f, step_);
          break;
        case Link::kOut:
        case Link::kOutAgain:
          out_proj(cx, site, d_, att_, step_);
          break;
        case Link::kDense:
          out_proj(cx, site, d_, h_, step_);
          break;
        case Link::kShared:
          out_proj(cx, site, shared_, h_, step_);
          break;
        case Link::kRoute:
          norm_route(cx, site, to, h_, routing, from, d_);
          std::swap(from, to);
          break;
        case Link::kUp:
          moe_up(cx, site, u_, h_, routing);
          break;
        case Link::kDown:
          moe_down(cx, site, d_, u_, routing);
          break;
        case Link::kIn:
          norm_linear(cx, site, {qkvz_, h_, to}, from, d_);
          std::swap(from, to);
          break;
        case Link::kRule:
          delta_rule(
              cx, site, att_, states_,
              {make_tensor(qkvz_.data, DType::kF32, {step_.num_tokens, kDelta.width()}), gates_},
              step_);
          break;
        case Link::kMamba:
          mamba2(cx, site, att_, mamba_states_, qkvz_, step_);
          break;
        case Link::kGate:
          output_gate(cx, site, att_, q_gate_);
          break;
        case Link::kSharedUp:
          shared_up(cx, site, shared_u_, h_);
          break;
      }
    }
  }

  // From buffers that hold NaNs, but for those that a chain may begin with.
  std::map<std::string, std::vector<uint8_t>> replay(const cuda::Graph& graph) {
    const std::vector<std::pair<const char*, Tensor>> buffers = {{"x", x_},
                                                                 {"y", y_},
                                                                 {"d", d_},
                                                                 {"h", h_},
                                                                 {"q", q_},
                                                                 {"att", att_},
                                                                 {"u", u_},
                                                                 {"shared", shared_},
                                                                 {"room", room_},
                                                                 {"qkvz", qkvz_},
                                                                 {"shared_u", shared_u_}};
    for (const auto& [name, t] : buffers) cuda::fill(t.data, 0xff, t.size_bytes());
    const int64_t choices = int64_t{case_.tokens} * kTopK;
    for (void* p : {static_cast<void*>(routing_.ids), static_cast<void*>(routing_.p),
                    static_cast<void*>(routing_.slot), static_cast<void*>(routing_.token)})
      cuda::fill(p, 0, 4 * choices);
    cuda::fill(routing_.offsets, 0, 4 * (kExperts + 1));
    for (const auto& [to, from] : {std::pair(x_, x0_), {y_, x0_}, {d_, d0_}, {att_, att0_}}) {
      const std::vector<uint8_t> host = gpu_.bytes(from);
      cuda::copy(to.data, host.data(), from.size_bytes());
    }
    graph.launch(gpu_.cx.stream);
    std::map<std::string, std::vector<uint8_t>> all;
    for (const auto& [name, t] : buffers) all[name] = gpu_.bytes(t);
    return all;
  }

  const Case case_;
  Random random_{5};
  GpuProblem gpu_;
  std::map<Link, Loaded> loaded_;
  Norm norm_;
  Tensor x_, y_, d_, shared_, h_, q_, att_, u_, room_, x0_, d0_, att0_, cos_sin_;
  Tensor qkvz_, gates_, q_gate_, shared_u_;
  RecurrentLayer states_, mamba_states_;
  DeltaRuleWeights delta_;
  Mamba2Weights mamba_;
  const uint16_t* gate_ = nullptr;
  Routing routing_;
  Step step_;
  KvLayer kv_;
};

using enum Link;
const Chain kAttends = {kQkv, kAttention, kOut};
const Chain kChains[] = {
    {kQkv, kAttention, kOut, kRoute, kUp, kDown, kQkv, kAttention, kOut, kRoute, kUp, kDown},
    {kQkv, kAttention, kOut, kQkv, kDense, kQkv, kAttention, kOut, kQkv, kDense, kQkv},  // dense
    {kQkv, kAttention, kOut, kOutAgain, kQkv, kAttention, kOutAgain, kOut, kQkv},
    {kQkv, kAttention, kOut, kRoute, kShared, kUp, kDown, kRoute, kUp, kShared, kDown, kQkv},
    {kRoute, kUp, kDown, kRoute, kUp, kDown, kRoute, kUp, kDown},  // no attention
    {kQkv, kQkv, kQkv, kQkv},                                      // nothing between norms
    {kRoute, kDown, kQkv, kRoute, kShared, kDown, kQkv},           // moe_up left out
    {kQkv, kDense, kRoute, kUp, kQkv, kAttention, kRoute, kUp, kDown, kDown},
    {kIn,   kRule, kOut,   kRoute,    kSharedUp, kUp,   kDown, kIn,
     kRule, kOut,  kRoute, kSharedUp, kUp,       kDown, kQkv,  kAttention,
     kGate, kOut,  kRoute, kSharedUp, kUp,       kDown},  // Qwen3-Next
    {kIn, kRule, kGate, kOut, kIn, kRule, kRule, kOut, kIn},
    {kIn, kMamba, kOut, kRoute, kSharedUp, kUp, kDown, kIn, kMamba, kMamba, kOut, kIn},
};

// Blocks in any order, each now and then without one of its ops; the choice is never left out.
Chain random_chain(Random& random) {
  const Chain blocks[] = {kAttends,
                          {kQkv, kDense},
                          {kRoute, kUp, kDown},
                          {kRoute, kShared, kUp, kDown},
                          {kRoute, kUp, kShared, kDown},
                          {kQkv, kAttention, kOut, kOutAgain},
                          {kIn, kRule, kOut},
                          {kIn, kMamba, kOut},
                          {kQkv, kAttention, kGate, kOut},
                          {kRoute, kSharedUp, kUp, kDown},
                          {kQkv, kShared}};
  Chain chain;
  for (int i = 0; i < 6; ++i)
    for (const Link link : blocks[random.below(std::size(blocks))])
      if (link == kRoute || random.below(8) != 0) chain.push_back(link);
  return chain;
}

TEST(LaunchOrderGpu, TheSameBitsWithAndWithoutDependentLaunches) {
  Random random(9);
  for (const int32_t tokens : {1, 2, 5, 40, 130})
    for (const Format dense : {Format::kNvfp4, Format::kMxfp4, Format::kBF16})
      for (const ActFormat activations : {ActFormat::kBF16, ActFormat::kFp8}) {
        if (is_too_slow(tokens * kHidden)) continue;
        if (dense == Format::kNvfp4 && activations == ActFormat::kFp8) continue;  // no kernel
        Chained chained({tokens, dense, activations});
        for (const Chain& chain : kChains) chained.expect_the_same_bits(chain);
        for (int i = 0; i < kRandomChains; ++i) chained.expect_the_same_bits(random_chain(random));
        if (testing::Test::HasFatalFailure()) return;
      }
}

}  // namespace
}  // namespace nibble::ops
