#include "cli/op_launch.h"

#include "ops/rope/rope.h"

namespace nibble::cli {

namespace {

using Outputs = std::vector<std::pair<std::string, Tensor>>;

const Weight& turn_of(ops::Ctx& cx, const std::vector<ops::Site>& sites, size_t turn) {
  cx.site = &sites[turn % sites.size()];
  return cx.site->weight;
}

int64_t act_bytes(const ops::Ctx& cx) { return dtype_bytes(cx.activations); }

}  // namespace

std::vector<ops::Site> OpLaunches::weights(Weight like, Layout layout) {
  like.layout = layout;
  return operands_.weights(like);
}

// Older than what is launched from then on, as in a step.
std::vector<OpOperands::Choice> OpLaunches::choices(int64_t tokens, int64_t experts, int64_t top_k,
                                                    int64_t shared) {
  auto all = operands_.choices(tokens, experts, top_k, shared);
  for (const OpOperands::Choice& choice : all) cx_.wrote({choice.routing.ids});
  return all;
}

OpLaunch OpLaunches::of(const ops::EmbedDesc& desc, const ops::EmbedKernel& k) {
  constexpr int64_t kHeadDim = 64;
  const Weight like{.format = desc.format, .rows = desc.vocab, .cols = desc.hidden};
  const ops::EmbedOut out{operands_.output(desc.tokens, desc.hidden),
                          operands_.output(desc.tokens, desc.hidden),
                          operands_.output(desc.tokens, kHeadDim)};
  auto s = operands_.sequences(desc.tokens, {}, 1, 2);
  s.step.tokens = operands_.ids(desc.tokens, desc.vocab);
  auto run = [=, &cx = cx_, &k, rope = ops::make_rope(kHeadDim, 1e4, std::nullopt),
              w = weights(like, k.layout)](size_t i) {
    k.run(cx, out, turn_of(cx, w, i), rope, s.step);
    return bytes(desc, desc.tokens);
  };
  return {run, {{"x", out.x}, {"d", out.d}, {"cos_sin", out.cos_sin}}};
}

OpLaunch OpLaunches::of(const ops::NormQkvDesc& desc, const ops::NormQkvKernel& k) {
  return norm_qkv(
      desc, k,
      operands_.sequences(desc.tokens, {.kv = sequences_.kv}, desc.kv_heads, desc.head_dim),
      /*is_left=*/false);
}

OpLaunch OpLaunches::norm_qkv(const ops::NormQkvDesc& desc, const ops::NormQkvKernel& k,
                              const OpOperands::Sequences& s, bool is_left) {
  const int64_t q_width = desc.q_heads * desc.head_dim;
  const Weight like{.format = desc.format, .rows = rows_of(desc), .cols = desc.hidden};
  const Tensor x = operands_.floats(desc.tokens, desc.hidden),
               d = operands_.floats(desc.tokens, desc.hidden),
               angles = operands_.floats(desc.tokens,
                                         desc.rotary_dim == 0 ? desc.head_dim : desc.rotary_dim);
  const ops::NormQkvOut out{operands_.stored_output(desc.tokens, q_width),
                            operands_.stored_output(desc.tokens, desc.hidden),
                            operands_.output(desc.tokens, desc.hidden),
                            desc.has_gates ? operands_.output(desc.tokens, q_width) : Tensor{}};
  ops::QkvNorms norms{.input = operands_.norm(desc.hidden)};
  if (desc.norms_heads)
    norms.q = operands_.norm(desc.head_dim), norms.k = operands_.norm(desc.head_dim);
  std::vector<ops::Site> sites = weights(like, k.layout);
  float* left = nullptr;
  if (is_left) {
    for (ops::Site& site : sites) site.readers_take = static_cast<int32_t>(desc.tokens);
    left = operands_.output(desc.tokens, rows_of(desc)).as<float>();
  }
  auto run = [=, &cx = cx_, &k, w = std::move(sites)](size_t i) {
    cx.left_heads = {.products = left};
    k.run(cx, out, s.kv, x, d, norms, turn_of(cx, w, i), angles, s.step);
    return bytes(desc, desc.tokens, act_bytes(cx));
  };
  Outputs outputs = {{"q", out.q}, {"h", out.h}, {"y", out.y}, {"k", s.kv.k}, {"v", s.kv.v}};
  if (desc.has_gates) outputs.emplace_back("gate", out.gate);
  return {run, std::move(outputs)};
}

OpLaunch OpLaunches::of(const ops::NormQkvDesc& heads, const ops::NormQkvKernel& leaves,
                        const ops::AttentionDesc& desc, const ops::AttentionKernel& takes) {
  const auto s = operands_.sequences(desc.tokens, sequences_, desc.kv_heads, desc.head_dim);
  const OpLaunch first = norm_qkv(heads, leaves, s, cx_.on_gpu() && desc.tokens <= takes.takes);
  const Tensor q = first.outputs[0].second,
               att = operands_.stored_output(desc.tokens, desc.q_heads * desc.head_dim);
  const ops::AttentionParams params{.scale = 0.125f,
                                    .window = static_cast<int32_t>(desc.window),
                                    .sinks = operands_.vector(desc.q_heads)};
  auto run = [=, &cx = cx_, &takes](size_t i) {
    const int64_t moved = first.run(i);
    takes.run(cx, att, q, s.kv, params, s.step);
    cx.left_heads = {};
    return moved;
  };
  return {run, {{"att", att}, {"k", s.kv.k}, {"v", s.kv.v}}};
}

OpLaunch OpLaunches::of(const ops::AttentionDesc& desc, const ops::AttentionKernel& k) {
  const int64_t tokens = desc.tokens, q_width = desc.q_heads * desc.head_dim;
  const auto s = operands_.sequences(tokens, sequences_, desc.kv_heads, desc.head_dim);
  const Tensor q = operands_.stored(tokens, q_width),
               att = operands_.stored_output(tokens, q_width);
  const ops::AttentionParams params{.scale = 0.125f,
                                    .window = static_cast<int32_t>(desc.window),
                                    .sinks = operands_.vector(desc.q_heads)};
  auto run = [=, &cx = cx_, &k, context = sequences_.context](size_t) {
    k.run(cx, att, q, s.kv, params, s.step);
    return s.count *
           bytes(desc, tokens / s.count, context, dtype_bytes(s.kv.k.dtype), act_bytes(cx));
  };
  return {run, {{"att", att}}};
}

OpLaunch OpLaunches::of(const ops::OutProjDesc& desc, const ops::OutProjKernel& k) {
  const Weight like{.format = desc.format, .rows = desc.hidden, .cols = desc.width};
  const Tensor d = operands_.output(desc.tokens, desc.hidden),
               att = operands_.stored(desc.tokens, desc.width);
  const Step step{.num_tokens = static_cast<int32_t>(desc.tokens)};
  auto run = [=, &cx = cx_, &k, w = weights(like, k.layout)](size_t i) {
    k.run(cx, d, att, turn_of(cx, w, i), step);
    return bytes(desc, desc.tokens, act_bytes(cx));
  };
  return {run, {{"d", d}}};
}

OpLaunch OpLaunches::of(const ops::MlpUpDesc& desc, const ops::MlpUpKernel& k) {
  const Weight like{.format = desc.format, .rows = desc.rows(), .cols = desc.hidden};
  const Tensor x = operands_.floats(desc.tokens, desc.hidden),
               d = operands_.floats(desc.tokens, desc.hidden);
  const ops::MlpUpOut out{operands_.stored_output(desc.tokens, desc.width),
                          operands_.stored_output(desc.tokens, desc.hidden),
                          operands_.output(desc.tokens, desc.hidden)};
  auto run = [=, &cx = cx_, &k, norm = operands_.norm(desc.hidden),
              w = weights(like, k.layout)](size_t i) {
    k.run(cx, out, x, d, norm, turn_of(cx, w, i), desc.act);
    return bytes(desc, desc.tokens, act_bytes(cx));
  };
  return {run, {{"u", out.u}, {"h", out.h}, {"y", out.y}}};
}

OpLaunch OpLaunches::of(const ops::NormRouteDesc& desc, const ops::NormRouteKernel& k) {
  const Weight like{.format = desc.format, .rows = desc.experts - desc.shared, .cols = desc.hidden};
  const Tensor x = operands_.floats(desc.tokens, desc.hidden),
               d = operands_.floats(desc.tokens, desc.hidden),
               y = operands_.output(desc.tokens, desc.hidden),
               h = operands_.stored_output(desc.tokens, desc.hidden);
  auto to = choices(desc.tokens, desc.experts, desc.top_k, desc.shared);
  for (auto& choice : to) {
    choice.routing.over_all = desc.over_all, choice.routing.sigmoid = desc.sigmoid;
    if (desc.sigmoid.is_used) choice.routing.bias = operands_.constant(desc.experts, 0.125f);
    choice.routing.shared = static_cast<int32_t>(desc.shared);
    if (desc.shared == 1) choice.routing.shared_gate = operands_.vector(desc.hidden);
  }
  const Routing& r = to[0].routing;
  const int64_t chosen = desc.tokens * desc.top_k;
  const auto ints = [](int32_t* data, int64_t n) { return make_tensor(data, DType::kI32, {1, n}); };
  Outputs outputs = {{"y", y},
                     {"h", h},
                     {"ids", ints(r.ids, chosen)},
                     {"p", make_tensor(r.p, DType::kF32, {1, chosen})},
                     {"counts", ints(r.counts, desc.experts)},
                     {"offsets", ints(r.offsets, desc.experts + 1)},
                     {"slot", ints(r.slot, chosen)},
                     {"token", ints(r.token, chosen)}};
  auto run = [=, &cx = cx_, &k, norm = operands_.norm(desc.hidden),
              w = weights(like, k.layout)](size_t i) mutable {
    k.run(cx, y, h, to[i % to.size()].routing, x, d, norm, turn_of(cx, w, i));
    return bytes(desc, desc.tokens, act_bytes(cx));
  };
  return {run, std::move(outputs)};
}

OpLaunch OpLaunches::of(const ops::MoeUpDesc& desc, const ops::MoeUpKernel& k) {
  const Weight like{
      .format = desc.format, .experts = desc.experts, .rows = desc.rows(), .cols = desc.hidden};
  const Tensor h = operands_.stored(desc.tokens, desc.hidden),
               u = operands_.stored_output(desc.tokens * desc.top_k, desc.width);
  const auto to = choices(desc.tokens, desc.experts, desc.top_k, desc.shared);
  auto run = [=, &cx = cx_, &k, w = weights(like, k.layout)](size_t i) {
    const auto& choice = to[i % to.size()];
    k.run(cx, u, h, choice.routing, turn_of(cx, w, i), desc.act);
    cx.wrote({u.data});
    return bytes(desc, desc.tokens, choice.distinct, act_bytes(cx));
  };
  return {run, {{"u", u}}, to};
}

OpLaunch OpLaunches::of(const ops::MoeDownDesc& desc, const ops::MoeDownKernel& k,
                        const OpLaunch* up) {
  const Weight like{
      .format = desc.format, .experts = desc.experts, .rows = desc.hidden, .cols = desc.width};
  const Tensor d = operands_.output(desc.tokens, desc.hidden),
               u = up != nullptr ? up->outputs[0].second
                                 : operands_.stored(desc.tokens * desc.top_k, desc.width);
  const auto to =
      up != nullptr ? up->choices : choices(desc.tokens, desc.experts, desc.top_k, desc.shared);
  auto run = [=, &cx = cx_, &k, w = weights(like, k.layout)](size_t i) {
    const auto& choice = to[i % to.size()];
    k.run(cx, d, u, choice.routing, turn_of(cx, w, i));
    return bytes(desc, desc.tokens, choice.distinct, act_bytes(cx));
  };
  return {run, {{"d", d}}, to};
}

OpLaunch OpLaunches::of(const ops::NormUnembedDesc& desc, const ops::NormUnembedKernel& k) {
  const Weight like{.format = desc.format, .rows = desc.vocab, .cols = desc.hidden};
  const Tensor x = operands_.floats(desc.tokens, desc.hidden),
               d = operands_.floats(desc.tokens, desc.hidden),
               h = operands_.stored_output(desc.tokens, desc.hidden),
               logits = operands_.output(desc.tokens, desc.vocab);
  const auto s = operands_.sequences(desc.tokens, {}, 1, 2);
  auto run = [=, &cx = cx_, &k, norm = operands_.norm(desc.hidden),
              w = weights(like, k.layout)](size_t i) {
    k.run(cx, logits, h, x, d, norm, turn_of(cx, w, i), s.step);
    return bytes(desc, desc.tokens, act_bytes(cx));
  };
  return {run, {{"logits", logits}, {"h", h}}};
}

OpLaunch OpLaunches::of(const ops::NormLinearDesc& desc, const ops::NormLinearKernel& k) {
  const Weight like{.format = desc.format, .rows = desc.width, .cols = desc.hidden};
  const Tensor x = operands_.floats(desc.tokens, desc.hidden),
               d = operands_.floats(desc.tokens, desc.hidden);
  const ops::NormLinearOut out{operands_.output(desc.tokens, desc.width),
                               operands_.stored_output(desc.tokens, desc.hidden),
                               operands_.output(desc.tokens, desc.hidden)};
  auto run = [=, &cx = cx_, &k, norm = operands_.norm(desc.hidden),
              w = weights(like, k.layout)](size_t i) {
    k.run(cx, out, x, d, norm, turn_of(cx, w, i));
    return bytes(desc, desc.tokens, act_bytes(cx));
  };
  return {run, {{"p", out.p}, {"h", out.h}, {"y", out.y}}};
}

OpLaunch OpLaunches::of(const ops::DeltaRuleDesc& desc, const ops::DeltaRuleKernel& k) {
  const auto s = operands_.sequences(desc.tokens, sequences_, 1, 2);
  const Tensor att = operands_.stored_output(desc.tokens, desc.value_width());
  const ops::DeltaRuleIn in{
      operands_.floats(desc.tokens, desc.width()),
      desc.joined ? Tensor{} : operands_.floats(desc.tokens, desc.num_gates())};
  const RecurrentLayer layer = operands_.recurrent(desc, s.count);
  auto run = [=, &cx = cx_, &k, w = operands_.delta_weights(desc)](size_t) {
    k.run(cx, att, layer, in, desc, w, s.step);
    return bytes(desc, s.count, desc.tokens / s.count, act_bytes(cx));
  };
  return {run, {{"att", att}, {"state", layer.state}, {"conv", layer.conv}}};
}

OpLaunch OpLaunches::of(const ops::Mamba2Desc& desc, const ops::Mamba2Kernel& k) {
  const auto s = operands_.sequences(desc.tokens, sequences_, 1, 2);
  const Tensor att = operands_.stored_output(desc.tokens, desc.inner()),
               in = operands_.floats(desc.tokens, desc.width());
  const RecurrentLayer layer = operands_.recurrent(desc, s.count);
  auto run = [=, &cx = cx_, &k, w = operands_.mamba_weights(desc)](size_t) {
    k.run(cx, att, layer, in, desc, w, s.step);
    return bytes(desc, s.count, desc.tokens / s.count, act_bytes(cx));
  };
  return {run, {{"att", att}, {"state", layer.state}, {"conv", layer.conv}}};
}

OpLaunch OpLaunches::of(const ops::OutputGateDesc& desc, const ops::OutputGateKernel& k) {
  const Tensor att = operands_.stored(desc.tokens, desc.width),
               gate = operands_.floats(desc.tokens, desc.width);
  auto run = [=, &cx = cx_, &k](size_t) {
    k.run(cx, att, gate);
    return bytes(desc, desc.tokens, act_bytes(cx));
  };
  return {run, {{"att", att}}};
}

OpLaunch OpLaunches::of(const ops::SharedUpDesc& desc, const ops::SharedUpKernel& k) {
  const Weight like{.format = desc.format, .rows = desc.rows(), .cols = desc.hidden};
  const Tensor h = operands_.stored(desc.tokens, desc.hidden),
               u = operands_.stored_output(desc.tokens, desc.width);
  auto run = [=, &cx = cx_, &k, gate = operands_.vector(desc.hidden),
              w = weights(like, k.layout)](size_t i) {
    k.run(cx, u, h, turn_of(cx, w, i), gate, desc.act);
    return bytes(desc, desc.tokens, act_bytes(cx));
  };
  return {run, {{"u", u}}};
}

}  // namespace nibble::cli
