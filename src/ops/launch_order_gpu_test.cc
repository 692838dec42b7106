// Ops strung together in orders that gpt-oss never has, with and without dependent launches: the
// same bits, many times over. A kernel that reads before its wait what the kernels in front have
// not written yet shows here, be it of the step before: chains are of up to four steps, each of
// which reads keys, values and states that the one before it has written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <sstream>
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
constexpr int32_t kMostSteps = 4;                   // of a chain
constexpr int64_t kMostBytes = int64_t{192} << 10;  // of the buffers of a token

// Of delta nets, whose outputs are as wide as attention's.
constexpr DeltaRuleDesc kDelta{4, 8, 128, 128, 4};
constexpr DeltaRuleDesc kJoinedDelta{.key_heads = kDelta.key_heads,
                                     .value_heads = kDelta.value_heads,
                                     .key_dim = kDelta.key_dim,
                                     .value_dim = kDelta.value_dim,
                                     .taps = kDelta.taps,
                                     .joined = true};
// And of Mamba2 layers, whose inputs are as wide as those with joined gates.
constexpr Mamba2Desc kMamba2{16, 4, 64, 128, 4};
constexpr int64_t kInputs = kMamba2.width();
static_assert(kInputs == kJoinedDelta.width() && kMamba2.inner() == kHeads * kDim);

// What a chain is made of. kDense stands where a dense MLP would, kShared beside the experts; kIn
// and kRule or kMamba where attention would. Of the experts of kLast*, which kUngatedRoute chooses,
// too, the last is shared. kStep begins the next step.
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
  kMamba,
  kRuleJoined,
  kGates,
  kLastRoute,
  kUngatedRoute,
  kLastUp,
  kLastDown,
  kStep
};
using Chain = std::vector<Link>;

std::string text_of(const Chain& chain) {
  constexpr const char* kNames[] = {
      "qkv",         "attention", "out",        "out again",     "dense",   "route",     "shared",
      "up",          "down",      "in",         "rule",          "gate",    "shared up", "mamba",
      "joined rule", "gates",     "last route", "ungated route", "last up", "last down", "| step"};
  std::string text;
  for (const Link link : chain) text += std::string(kNames[static_cast<int>(link)]) + " ";
  return text;
}

struct Case {
  Format dense;
  ActFormat activations;
  bool has_wide_heads = false;  // half as many of 128 dims, which norm_qkv may leave to attention
  int64_t head_dim() const { return has_wide_heads ? 2 * kDim : kDim; }
  int64_t heads() const { return kHeads * kDim / head_dim(); }
  int64_t kv_heads() const { return kKvHeads * kDim / head_dim(); }
};

// Random enough, and drawn once: this test's time is the GPU's.
Floats floats_of(int64_t rows, int64_t cols) {
  static const std::vector<float> drawn = Random(5).normals(1'000'003);
  Floats all(rows, cols);
  for (size_t i = 0; i < all.values.size(); ++i) all.values[i] = drawn[i % drawn.size()];
  return all;
}

// One of each kind, as a case's kernels want it.
struct Weights {
  explicit Weights(const Case& c) : of(c) {
    gpu.cx.kernels.activations = c.activations;
    add(Link::kQkv, NormQkvDesc{kHidden, c.heads(), c.kv_heads(), c.head_dim(), c.dense}, 1,
        (kHeads + 2 * kKvHeads) * kDim, kHidden, c.dense);
    for (const Link link : {Link::kOut, Link::kDense})
      add(link, OutProjDesc{kHidden, kHidden, c.dense}, 1, kHidden, kHidden, c.dense);
    add(Link::kRoute, NormRouteDesc{kHidden, kExperts, kTopK}, 1, kExperts, kHidden, Format::kBF16);
    add_experts({Link::kUp, Link::kDown}, /*shared=*/0, kClampedSwiglu);
    add(Link::kLastRoute,
        NormRouteDesc{.hidden = kHidden, .experts = kExperts + 1, .top_k = kTopK + 1, .shared = 1},
        1, kExperts, kHidden, Format::kBF16);
    add_experts({Link::kLastUp, Link::kLastDown}, /*shared=*/1, {});
    add(Link::kGates, OutProjDesc{kDelta.num_gates(), kHidden, Format::kBF16}, 1,
        kDelta.num_gates(), kHidden, Format::kBF16);
    add(Link::kIn, NormLinearDesc{kHidden, kInputs, c.dense}, 1, kInputs, kHidden, c.dense);
    add(Link::kSharedUp, SharedUpDesc{kHidden, kWidth, c.dense}, 1, 2 * kWidth, kHidden, c.dense);
    const std::vector<uint16_t> ones(kHidden, bf16_from_float(1));
    norm = {gpu.array(ones), 1e-5f};
    gate = gpu.array(random.bf16s(kHidden, 0.03f));
    const auto floats = [&](int64_t n) { return gpu.array(random.normals(n)); };
    mamba = {floats(kMamba2.channels() * kMamba2.taps),
             floats(kMamba2.channels()),
             floats(kMamba2.heads),
             floats(kMamba2.heads),
             floats(kMamba2.heads),
             floats(kMamba2.inner()),
             1e-5f};
    delta = {floats(kDelta.channels() * kDelta.taps), floats(kDelta.value_heads),
             floats(kDelta.value_heads), floats(kDelta.value_dim), 1e-6f};
  }

  void add_experts(std::pair<Link, Link> up_down, int64_t shared, const Swiglu& act) {
    const Format format = of.dense == Format::kNvfp4 ? Format::kNvfp4 : Format::kMxfp4;
    const int64_t experts = kExperts + shared, top_k = kTopK + shared;
    add(up_down.first,
        MoeUpDesc{.hidden = kHidden,
                  .width = kWidth,
                  .experts = experts,
                  .top_k = top_k,
                  .format = format,
                  .act = act,
                  .shared = shared},
        experts, 2 * kWidth, kHidden, format);
    add(up_down.second,
        MoeDownDesc{.hidden = kHidden,
                    .width = kWidth,
                    .experts = experts,
                    .top_k = top_k,
                    .format = format,
                    .act = act,
                    .shared = shared},
        experts, kHidden, kWidth, format);
  }

  void add(Link link, const Problem& problem, int64_t experts, int64_t rows, int64_t cols,
           Format format) {
    TestWeight w(random, format, experts, rows, cols);
    Sites one;
    one.push_back({{op_of(problem)}, "", problem, {}, {"routing", "q"}});
    plan_sites(one, gpu.cx.kernels);
    if (one[0].plan.layout() != Layout::kRows) w.pack(one[0].plan.layout());
    loaded[link] = {problem, gpu.weight(w)};
  }

  struct Loaded {
    Problem problem;
    Weight weight;
  };
  const Case of;
  Random random{5};
  GpuProblem gpu;
  std::map<Link, Loaded> loaded;
  Norm norm;
  const uint16_t* gate = nullptr;
  Mamba2Weights mamba;
  DeltaRuleWeights delta;
};

// The buffers of steps of so many tokens; runs chains of sites.
class Chained {
 public:
  Chained(Weights& weights, int32_t tokens)
      : weights_(weights), tokens_(tokens), memory_(cuda::device_buffer(kMostBytes * tokens)) {
    make_buffers();
    make_steps();
    make_states();
  }

  // What all buffers hold after the chain, each time that it runs.
  void expect_the_same_bits(const Chain& chain) {
    std::ostringstream text;
    text << tokens_ << " tokens, " << format_name(weights_.of.dense) << ", "
         << act_format_name(weights_.of.activations) << ", " << weights_.of.head_dim()
         << " dims: " << text_of(chain);
    SCOPED_TRACE(text.str());
    std::printf("  %s\n", text.str().c_str());  // where it stands still, too
    std::fflush(stdout);
    Sites sites = plan(chain);
    const Buffer prepared = prepare_weights(cx_, sites);
    int64_t most = 1;
    for (const Site& site : sites)
      most = std::max(most, scratch_bytes(site, cx_, tokens_, tokens_));
    const Buffer scratch = cuda::device_buffer(most);
    cx_.scratch = {static_cast<std::byte*>(scratch.data()), static_cast<size_t>(most)};

    cx_.stream.order.allow_dependent(false);
    const cuda::Graph apart = record(chain, sites);
    const std::vector<uint8_t> want = replay(apart);
    cx_.stream.order.allow_dependent(true);
    const cuda::Graph dependent = record(chain, sites);
    for (int i = 0; i < kReplays; ++i)
      ASSERT_EQ(differing(replay(dependent), want), "") << "replay " << i;
    EXPECT_TRUE(weights_.gpu.counters_are_zero());
  }

 private:
  // What a replay begins with and what it leaves: one piece of memory, copied whole. NaNs, but for
  // what a chain may begin with.
  void make_buffers() {
    const int64_t t = tokens_;
    const auto add = [&](const char* name, DType dtype, std::initializer_list<int64_t> shape) {
      const Tensor tensor = memory_.take(dtype, shape);
      buffers_.emplace_back(name, tensor);
      return tensor;
    };
    cuda::fill(memory_.data(), 0xff, memory_.size_bytes());
    const auto add_indices = [&](const char* name, int64_t n) {
      const Tensor tensor = add(name, DType::kI32, {n});
      cuda::fill(tensor.data, 0, tensor.size_bytes());
      return tensor.as<int32_t>();
    };
    x_ = add("x", DType::kF32, {t, kHidden}), y_ = add("y", DType::kF32, {t, kHidden});
    d_ = add("d", DType::kF32, {t, kHidden}), shared_ = add("shared", DType::kF32, {t, kHidden});
    h_ = add("h", DType::kBF16, {t, kHidden});
    q_ = add("q", DType::kBF16, {t, kHeads * kDim});
    att_ = add("att", DType::kBF16, {t, kHeads * kDim});
    u_ = add("u", DType::kBF16, {t * (kTopK + 1), kWidth});
    shared_u_ = add("shared_u", DType::kBF16, {t, kWidth});
    qkvz_ = add("qkvz", DType::kF32, {t, kInputs});
    gates_ = add("gates", DType::kF32, {t, kDelta.num_gates()});
    routing_ = {.num_tokens = tokens_,
                .num_experts = kExperts,
                .top_k = kTopK,
                .ids = add_indices("ids", t * (kTopK + 1)),
                .p = reinterpret_cast<float*>(add_indices("p", t * (kTopK + 1))),
                .counts = add_indices("counts", kExperts + 1),
                .offsets = add_indices("offsets", kExperts + 2),
                .slot = add_indices("slot", t * (kTopK + 1)),
                .token = add_indices("token", t * (kTopK + 1)),
                .room = add("room", DType::kF32, {kMostLeft, kExperts + 1}).as<float>()};
    compared_bytes_ = memory_.used_bytes();
    for (Tensor* side : {&kv_.k, &kv_.v})
      *side = memory_.take(DType::kBF16,
                           {t * kMaxPages, weights_.of.kv_heads(), kPage, weights_.of.head_dim()});
    GpuProblem& gpu = weights_.gpu;
    const auto put = [&](const Tensor& to) {
      const int64_t cols = to.dim(to.rank - 1);
      const Tensor from = gpu.tensor(floats_of(to.num_elements() / cols, cols), to.dtype);
      cuda::copy(to.data, from.data, to.size_bytes());
    };
    for (const Tensor& begun_with : {x_, y_, d_, att_, gates_, kv_.k, kv_.v}) put(begun_with);
    q_gate_ = gpu.tensor(floats_of(t, kHeads * kDim), DType::kF32);
    cos_sin_ = gpu.tensor(floats_of(t, weights_.of.head_dim()), DType::kF32);
    cx_.left_heads.products =
        gpu.output(DType::kF32, {kMostLeftHeads, (kHeads + 2 * kKvHeads) * kDim}).as<float>();
    begin_ = cuda::device_buffer(memory_.used_bytes());
    cuda::copy(begin_.data(), memory_.data(), begin_.size_bytes());
    end_ = cuda::pinned_buffer(compared_bytes_);
  }

  // Step n reads the slots that step n - 1 has written; what a step before left is zeros.
  void make_states() {
    const int64_t t = tokens_;
    std::vector<int32_t> ids(t * (kMostSteps + 1));
    std::iota(ids.begin(), ids.end(), 0);
    slots_ = weights_.gpu.array(ids);
    const auto slots = [&](std::initializer_list<int64_t> of) {
      const Tensor all = weights_.gpu.output(DType::kF32, of);
      const Tensor first =
          weights_.gpu.tensor(floats_of(t, all.num_elements() / all.dim(0)), DType::kF32);
      cuda::copy(all.data, first.data, first.size_bytes());
      return all;
    };
    const int64_t n = t * (kMostSteps + 1);
    states_ = {slots({n, kDelta.value_heads, kDelta.key_dim, kDelta.value_dim}),
               slots({n, kDelta.taps - 1, kDelta.channels()})};
    mamba_states_ = {slots({n, kMamba2.heads, kMamba2.state_dim, kMamba2.head_dim}),
                     slots({n, kMamba2.taps - 1, kMamba2.channels()})};
  }
  RecurrentLayer in_step(RecurrentLayer layer, int step) const {
    layer.from = slots_ + int64_t{step} * tokens_;
    layer.to = layer.from + tokens_;
    return layer;
  }

  // Every token the next of a sequence of its own.
  void make_steps() {
    GpuProblem& gpu = weights_.gpu;
    const int32_t t = tokens_;
    std::vector<int32_t> table(t * kMaxPages);
    std::iota(table.begin(), table.end(), 0);
    kv_.page_table = gpu.array(table), kv_.max_pages = kMaxPages, kv_.page_size = kPage;
    for (int32_t n = 0; n < kMostSteps; ++n) {
      std::vector<Span> spans;
      for (int32_t i = 0; i < t; ++i) spans.push_back({i, 1, kContext + n, i});
      steps_.push_back({.num_tokens = t,
                        .num_spans = t,
                        .num_out = t,
                        .max_context = kContext + n + 1,
                        .positions = gpu.array(std::vector<int32_t>(t, kContext + n)),
                        .spans = gpu.array(spans)});
    }
  }

  Problem problem_of(Link kind) const {
    if (kind == Link::kAttention)
      return AttentionDesc{weights_.of.heads(), weights_.of.kv_heads(), weights_.of.head_dim()};
    if (kind == Link::kRule) return kDelta;
    if (kind == Link::kRuleJoined) return kJoinedDelta;
    if (kind == Link::kMamba) return kMamba2;
    if (kind == Link::kGate) return OutputGateDesc{kHeads * kDim};
    return weights_.loaded.at(kind).problem;
  }

  Sites plan(const Chain& chain) {
    Sites sites;
    const auto add = [&](Link kind, std::vector<std::string> reads,
                         std::vector<std::string> writes) {
      const Problem problem = problem_of(kind);
      const SiteKey key(op_of(problem), static_cast<int>(sites.size()));
      sites.push_back({key, site_label(key), problem, std::move(reads), std::move(writes)});
      sites.back().delta = weights_.delta;
      sites.back().mamba = weights_.mamba;
      if (!weights_.loaded.contains(kind)) return;
      sites.back().weight = weights_.loaded.at(kind).weight;
      sites.back().norm = weights_.norm;
    };
    for (const Link link : chain) {
      if (link == Link::kQkv) add(link, {"x", "d"}, {"y", "h", "q", "kv"});
      if (link == Link::kAttention) add(link, {"q", "kv"}, {"att"});
      if (link == Link::kOut || link == Link::kOutAgain) add(Link::kOut, {"att"}, {"d"});
      if (link == Link::kDense) add(link, {"h"}, {"d"});
      if (link == Link::kShared) add(Link::kDense, {"h"}, {"shared"});
      if (link == Link::kRoute) add(link, {"x", "d"}, {"y", "h", "routing"});
      if (link == Link::kLastRoute || link == Link::kUngatedRoute)
        add(Link::kLastRoute, {"x", "d"}, {"y", "h", "routing"});
      if (link == Link::kUp || link == Link::kLastUp) add(link, {"h", "routing"}, {"u"});
      if (link == Link::kDown || link == Link::kLastDown) add(link, {"u", "routing"}, {"d"});
      if (link == Link::kIn) add(link, {"x", "d"}, {"y", "h", "qkvz"});
      if (link == Link::kGates) add(link, {"h"}, {"gates"});
      if (link == Link::kRule) add(link, {"qkvz", "kv", "gates"}, {"att", "kv"});
      if (link == Link::kRuleJoined || link == Link::kMamba)
        add(link, {"qkvz", "kv"}, {"att", "kv"});
      if (link == Link::kGate) add(link, {"att"}, {"att"});
      if (link == Link::kSharedUp) add(link, {"h"}, {"shared_u"});
      if (link == Link::kSharedUp || link == Link::kLastRoute) sites.back().gate = weights_.gate;
    }
    plan_sites(sites, cx_.kernels);
    return sites;
  }

  cuda::Graph record(const Chain& chain, const Sites& sites) {
    return {cx_.stream, [&] { run(chain, sites); }};
  }

  Routing routing_for(const Site& site) const {
    const auto& desc = std::get<NormRouteDesc>(site.problem);
    Routing routing = routing_;
    routing.num_experts = static_cast<int32_t>(desc.experts);
    routing.top_k = static_cast<int32_t>(desc.top_k);
    return routing;
  }
  Tensor u_of(const Routing& routing) const {
    return make_tensor(u_.data, u_.dtype, {int64_t{tokens_} * routing.top_k, kWidth});
  }
  DeltaRuleIn inputs_of(const Site& site) const {
    const auto& desc = std::get<DeltaRuleDesc>(site.problem);
    const Tensor inputs = make_tensor(qkvz_.data, DType::kF32, {tokens_, desc.width()});
    return {inputs, desc.joined ? Tensor() : gates_};
  }

  void run(const Chain& chain, const Sites& sites) {
    Ctx& cx = cx_;
    cx.stream.order.begin_step();
    int step = 0;
    size_t next = 0;            // site
    Tensor from = x_, to = y_;  // of the residual stream
    Routing routing = routing_;
    for (const Link link : chain) {
      if (link == Link::kStep) {
        cx.stream.order.begin_step();
        ++step;
        continue;
      }
      const Site& site = sites[next++];
      const Step& now = steps_.at(step);
      switch (link) {
        case Link::kQkv:
          norm_qkv(cx, site, {q_, h_, to}, kv_, from, d_, cos_sin_, now);
          std::swap(from, to);
          break;
        case Link::kAttention:
          attention(cx, site, att_, q_, kv_, 0.125f, now);
          break;
        case Link::kOut:
        case Link::kOutAgain:
          out_proj(cx, site, d_, att_, now);
          break;
        case Link::kDense:
          out_proj(cx, site, d_, h_, now);
          break;
        case Link::kShared:
          out_proj(cx, site, shared_, h_, now);
          break;
        case Link::kRoute:
        case Link::kLastRoute:
        case Link::kUngatedRoute:
          routing = routing_for(site);
          norm_route(cx, site, to, h_, routing, from, d_);
          std::swap(from, to);
          break;
        case Link::kUp:
        case Link::kLastUp:
          moe_up(cx, site, u_of(routing), h_, routing);
          break;
        case Link::kDown:
        case Link::kLastDown:
          moe_down(cx, site, d_, u_of(routing), routing);
          break;
        case Link::kIn:
          norm_linear(cx, site, {qkvz_, h_, to}, from, d_);
          std::swap(from, to);
          break;
        case Link::kRule:
        case Link::kRuleJoined:
          delta_rule(cx, site, att_, in_step(states_, step), inputs_of(site), now);
          break;
        case Link::kMamba:
          mamba2(cx, site, att_, in_step(mamba_states_, step), qkvz_, now);
          break;
        case Link::kGates:
          out_proj(cx, site, gates_, h_, now);
          break;
        case Link::kGate:
          output_gate(cx, site, att_, q_gate_);
          break;
        case Link::kSharedUp:
          shared_up(cx, site, shared_u_, h_);
          break;
        case Link::kStep:
          break;  // above
      }
    }
  }

  std::vector<uint8_t> replay(const cuda::Graph& graph) {
    const cuda::StreamHandle stream = cx_.stream;
    cuda::copy_async(memory_.data(), begin_.data(), begin_.size_bytes(), stream);
    for (const RecurrentLayer& layer : {states_, mamba_states_})
      for (const Tensor& all : {layer.state, layer.conv}) {
        const int64_t first = all.size_bytes() / (kMostSteps + 1);
        cuda::zero_async(static_cast<uint8_t*>(all.data) + first, all.size_bytes() - first, stream);
      }
    graph.launch(stream);
    cuda::copy_async(end_.data(), memory_.data(), compared_bytes_, stream);
    cuda::wait(stream);
    const auto* bytes = static_cast<const uint8_t*>(end_.data());
    return {bytes, bytes + compared_bytes_};
  }

  // The buffers that do.
  std::string differing(const std::vector<uint8_t>& is, const std::vector<uint8_t>& want) const {
    if (is == want) return "";
    std::string names;
    for (const auto& [name, t] : buffers_) {
      const int64_t at =
          static_cast<const uint8_t*>(t.data) - static_cast<uint8_t*>(memory_.data());
      if (std::memcmp(&is[at], &want[at], t.size_bytes()) != 0) names += std::string(name) + " ";
    }
    return names;
  }

  Weights& weights_;
  Ctx& cx_ = weights_.gpu.cx;
  const int32_t tokens_;
  Arena memory_;  // of all buffers, keys and values last
  Buffer begin_;  // what a replay finds there
  Buffer end_;    // and leaves, on the host
  int64_t compared_bytes_ = 0;
  std::vector<std::pair<const char*, Tensor>> buffers_;
  Tensor x_, y_, d_, shared_, h_, q_, att_, u_, qkvz_, shared_u_;
  Tensor gates_, q_gate_, cos_sin_;
  RecurrentLayer states_, mamba_states_;
  const int32_t* slots_ = nullptr;
  Routing routing_;
  std::vector<Step> steps_;
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
    {kIn, kMamba, kStep, kMamba, kStep, kMamba, kOut},  // nothing between writer and reader
    {kIn, kRule, kStep, kRule, kStep, kRule, kOut},
    {kIn, kMamba, kOut, kStep, kIn, kMamba, kOut, kStep, kIn, kRule, kOut, kStep, kIn, kRule, kOut},
    {kIn, kRuleJoined, kOut, kLastRoute, kLastUp, kLastDown, kIn, kRuleJoined, kOut, kLastRoute,
     kLastUp, kLastDown, kQkv, kAttention, kGate, kOut, kLastRoute, kLastUp,
     kLastDown},  // Qwen3-Next, its shared expert the last and the gates joined
    {kQkv, kAttention, kOut, kUngatedRoute, kLastUp, kLastDown, kQkv, kAttention, kOut,
     kUngatedRoute, kLastUp, kLastDown, kQkv},
    {kLastRoute, kLastUp, kLastDown, kRoute, kUp, kDown, kUngatedRoute, kLastUp, kLastDown, kQkv},
    {kLastRoute, kLastDown, kQkv, kUngatedRoute, kLastUp, kLastRoute, kLastUp, kLastDown},
    {kIn, kRuleJoined, kStep, kRuleJoined, kOut},
    {kIn, kGates, kRule, kOut, kIn, kGates, kRule, kOut, kStep, kIn, kGates, kRule, kOut, kIn},
    {kQkv, kStep, kAttention, kOut, kStep, kQkv, kAttention, kStep, kQkv, kAttention, kOut},
};

bool is_choice(Link link) { return link == kRoute || link == kLastRoute || link == kUngatedRoute; }

// Blocks in any order, each now and then without one of its ops or the last of a step; the choice
// is never left out.
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
                          {kQkv, kShared},
                          {kIn, kRuleJoined, kOut},
                          {kIn, kGates, kRule, kOut},
                          {kLastRoute, kLastUp, kLastDown},
                          {kUngatedRoute, kLastUp, kLastDown}};
  Chain chain;
  for (int i = 0; i < 6; ++i) {
    for (const Link link : blocks[random.below(std::size(blocks))])
      if (is_choice(link) || random.below(8) != 0) chain.push_back(link);
    if (i % 2 == 1 && i < 5 && random.below(2) == 0) chain.push_back(kStep);
  }
  return chain;
}

TEST(LaunchOrderGpu, TheSameBitsWithAndWithoutDependentLaunches) {
  std::vector<Case> cases;
  for (const Format dense : {Format::kNvfp4, Format::kMxfp4, Format::kBF16})
    for (const ActFormat activations : {ActFormat::kBF16, ActFormat::kFp8})
      if (dense != Format::kNvfp4 || activations != ActFormat::kFp8)  // for which is no kernel
        cases.push_back({dense, activations});
  for (const Format dense : {Format::kNvfp4, Format::kBF16})
    cases.push_back({dense, ActFormat::kBF16, /*has_wide_heads=*/true});
  Random random(9);
  for (const Case& c : cases) {
    Weights weights(c);
    for (const int32_t tokens : {1, 2, 5, 40, 130}) {
      if (is_too_slow(tokens * kHidden)) continue;
      Chained chained(weights, tokens);
      for (const Chain& chain : kChains) chained.expect_the_same_bits(chain);
      for (int i = 0; i < kRandomChains; ++i) chained.expect_the_same_bits(random_chain(random));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace nibble::ops
