#include "models/qwen3_next.h"

#include <cmath>
#include <utility>
#include <vector>

#include "models/hybrid_config.h"
#include "models/qwen3_next_config.h"

namespace nibble {
namespace {

using ops::Site;

// Of a layer: one of the first two pairs, and the rest.
struct Layer {
  const Site *in = nullptr, *delta = nullptr;
  const Site* gates = nullptr;  // where they are no rows of `in`
  const Site *qkv = nullptr, *attention = nullptr, *output_gate = nullptr;
  const Site* out;
  const Site* sum_out;  // over the ranks, where there are several
  ExpertSites moe;
};

// Every buffer of a step.
struct Acts {
  Tensor x;            // [T, H] residual stream, up to a layer's mixer
  Tensor y;            // [T, H] the same up to its experts
  Tensor d;            // [T, H] what is still to be added to x
  Tensor h;            // [T, H] normed
  Tensor cos_sin;      // [T, R] angles of this step's positions
  Tensor qkvz, gates;  // what enters a delta rule
  Tensor mixed;        // [T, HV * DV] what leaves it
  Tensor q, att;       // [T, Q * D]
  Tensor q_gate;       // [T, Q * D]
  RoutingBuffers routing;
  Tensor shared_u;  // [T, the shared expert's width]
  Tensor u;         // [T * K, F] expert activations, in expert order
  Tensor logits;    // [R, V]
};

class Qwen3Next : public SiteModel {
 public:
  Qwen3Next(Qwen3NextConfig config, const DenseFormats& dense, Quantization quantization,
            const Shard& shard)
      : SiteModel(dense, std::move(quantization), shard),
        c(std::move(config)),
        heads(cut_heads(c.q_heads, c.kv_heads, shard)),
        net(c.delta, shard, joins_gates()),
        width(cut_columns_of(layer_name(c.prefix, 0, "mlp.experts.0.down_proj"), c.width,
                             Format::kBF16)),
        shared_width(cut_columns_of(layer_name(c.prefix, 0, "mlp.shared_expert.down_proj"),
                                    c.shared_width, dense.mlp)),
        vocab(cut_vocab(c.vocab)),
        shared_is_last(is_shared_alike()) {
    state_buffers();
    Site& embed = add(-1, ops::EmbedDesc{c.vocab, c.hidden}, {}, {"x", "d", "cos_sin"});
    matrix(embed, "embed", {{c.prefix + "embed_tokens", c.vocab}}, c.hidden, Fill::kNormal);
    LayerGroup full{.num_kv_heads = static_cast<int32_t>(heads.kv.size),
                    .head_dim = static_cast<int32_t>(c.head_dim)},
        recurrent{.recurrent = recurrent_shape(net.here)};
    for (int32_t l = 0; l < c.layers(); ++l) {
      Layer layer;
      c.is_recurrent[l] ? state_delta(layer, l) : state_attention(layer, l);
      layer.moe = gated_experts(l, {.in = layer_name(c.prefix, l, ""),
                                    .hidden = c.hidden,
                                    .experts = c.experts,
                                    .top_k = c.top_k,
                                    .over_all = c.over_all,
                                    .width = width,
                                    .shared_width = shared_width,
                                    .shared_is_last = shared_is_last,
                                    .of_bf16 = Format::kBF16,
                                    .norm_eps = c.norm_eps});
      layers_.push_back(layer);
      (c.is_recurrent[l] ? recurrent : full).layers.push_back(l);
    }
    Site& unembed = add(-1, ops::NormUnembedDesc{c.hidden, vocab.size, dense_.unembed}, {"x", "d"},
                        {"logits", "h"});
    norm(unembed, c.prefix + "norm", c.hidden, c.norm_eps, 1);
    if (c.is_tied)
      tie(unembed, embed, vocab);
    else
      matrix(unembed, "unembed", {{"lm_head", vocab}}, c.hidden);
    embed_ = &embed, unembed_ = &unembed;
    std::vector<LayerGroup> groups;
    for (const LayerGroup& group : {full, recurrent})
      if (!group.layers.empty()) groups.push_back(group);
    describe({.architecture = c.architecture,
              .num_layers = static_cast<int32_t>(c.layers()),
              .vocab_size = static_cast<int32_t>(c.vocab),
              .logits = vocab,
              .max_positions = static_cast<int32_t>(c.max_positions),
              .groups = std::move(groups)});
  }

 private:
  // Whether the shared expert can be one more of the experts: of their width and formats.
  bool is_shared_alike() const {
    if (shared_width != width) return false;
    for (int64_t l = 0; l < c.layers(); ++l)
      if (const std::string mlp = layer_name(c.prefix, l, "mlp.");
          !joins_experts(mlp + "shared_expert", mlp + "experts.0",
                         {"gate_proj", "up_proj", "down_proj"}, c.experts + 1, c.top_k + 1))
        return false;
    return true;
  }

  // Whether the gates' rows can be further ones of a delta net's inputs: both in BF16.
  bool joins_gates() const {
    if (dense_.qkv != Format::kBF16) return false;
    const bool by_key_head = c.delta.inputs == ops::DeltaInputs::kByKeyHead;
    const std::vector<const char*> all =
        by_key_head ? std::vector{"qkvz", "ba"} : std::vector{"qkv", "z", "b", "a"};
    for (int64_t l = 0; l < c.layers(); ++l)
      for (const char* of : all)
        if (c.is_recurrent[l] &&
            quantization_.format_of(layer_name(c.prefix, l, "linear_attn.in_proj_") + of) !=
                Format::kBF16)
          return false;
    return true;
  }

  Cut q_width() const { return heads.q.times(c.head_dim); }
  Cut kv_width() const { return heads.kv.times(c.head_dim); }

  void state_buffers() {
    f32(a.x, "x", c.hidden), f32(a.y, "y", c.hidden), f32(a.d, "d", c.hidden);
    stored(a.h, "h", c.hidden);
    f32(a.cos_sin, "cos_sin", c.rotary_dim());
    f32(a.qkvz, "qkvz", net.here.width());
    if (!net.here.joined) f32(a.gates, "gates", net.here.num_gates());
    stored(a.mixed, "mixed", net.here.value_width());
    stored(a.q, "q", q_width().size), stored(a.att, "att", q_width().size);
    f32(a.q_gate, "q_gate", q_width().size);
    routing(a.routing, c.experts + shared_is_last, c.top_k + shared_is_last);
    if (!shared_is_last) stored(a.shared_u, "shared_u", shared_width.size);
    stored(a.u, "u", width.size, c.top_k + shared_is_last);
    f32_of_logits(a.logits, "logits", vocab.size);
  }

  void state_delta(Layer& layer, int l) {
    const std::string name = layer_name(c.prefix, l, "linear_attn.");
    Site& in = add(l, ops::NormLinearDesc{c.hidden, net.here.width(), dense_.qkv}, {"x", "d"},
                   {"qkvz", "h", "y"});
    norm(in, layer_name(c.prefix, l, "input_layernorm"), c.hidden, c.norm_eps, 1);
    const bool by_key_head = c.delta.inputs == ops::DeltaInputs::kByKeyHead;
    std::vector<Rows> inputs, gates;
    if (by_key_head)
      inputs = {{name + "in_proj_qkvz", net.inputs}}, gates = {{name + "in_proj_ba", net.gates}};
    else
      inputs = {{name + "in_proj_qkv", net.inputs}, {name + "in_proj_z", net.values}},
      gates = {{name + "in_proj_b", net.heads}, {name + "in_proj_a", net.heads}};
    std::vector<std::string> reads = {"qkvz", "kv"};
    if (net.here.joined) inputs.insert(inputs.end(), gates.begin(), gates.end());
    matrix(in, "delta net", inputs, c.hidden);
    if (!net.here.joined) {
      Site& apart =
          add(l, ops::OutProjDesc{net.here.num_gates(), c.hidden}, {"h"}, {"gates"}, "gates");
      matrix(apart, "delta net", gates, c.hidden);
      layer.gates = &apart;
      reads.push_back("gates");
    }
    Site& rule = add(l, net.here, std::move(reads), {"mixed", "kv"});
    delta(rule, name, c.norm_eps, net.channels, net.heads);
    Site& out = add(l, ops::OutProjDesc{c.hidden, net.values.size, dense_.out}, {"mixed"}, {"d"});
    matrix(out, "delta net", {{name + "out_proj", c.hidden}}, net.values, Fill::kResidual);
    layer.in = &in, layer.delta = &rule, layer.out = &out;
    layer.sum_out = add_sum(l, "d", c.hidden, "out");
  }

  void state_attention(Layer& layer, int l) {
    const std::string name = layer_name(c.prefix, l, "self_attn.");
    Site& qkv = add(l,
                    ops::NormQkvDesc{.hidden = c.hidden,
                                     .q_heads = heads.q.size,
                                     .kv_heads = heads.kv.size,
                                     .head_dim = c.head_dim,
                                     .format = dense_.qkv,
                                     .norms_heads = true,
                                     .has_gates = true,
                                     .rotary_dim = c.rotary_dim()},
                    {"x", "d", "cos_sin"}, {"q", "h", "y", "kv", "q_gate"});
    norm(qkv, layer_name(c.prefix, l, "input_layernorm"), c.hidden, c.norm_eps, 1);
    matrix(qkv, "attention",
           {{name + "q_proj", q_width().times(2)},
            {name + "k_proj", kv_width()},
            {name + "v_proj", kv_width()}},
           c.hidden);
    head_norm(qkv, qkv.q_norm, name + "q_norm", c.head_dim, c.norm_eps, 1);
    head_norm(qkv, qkv.k_norm, name + "k_norm", c.head_dim, c.norm_eps, 1);
    layer.qkv = &qkv;
    layer.attention =
        &add(l, ops::AttentionDesc{heads.q.size, heads.kv.size, c.head_dim}, {"q", "kv"}, {"att"});
    layer.output_gate = &add(l, ops::OutputGateDesc{q_width().size}, {"att", "q_gate"}, {"att"});
    Site& out = add(l, ops::OutProjDesc{c.hidden, q_width().size, dense_.out}, {"att"}, {"d"});
    matrix(out, "attention", {{name + "o_proj", c.hidden}}, q_width(), Fill::kResidual);
    layer.out = &out;
    layer.sum_out = add_sum(l, "d", c.hidden, "out");
  }

  // x += Mixer(norm(x)); x += Shared(norm(x)) + Moe(norm(x)) for each layer, then logits =
  // unembed(norm(x[out_rows])).
  Tensor run(ops::Ctx& cx, const Step& step, const SeqState& state) override {
    Step s = step;  // of the tokens that the ops to come have
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    Routing routing = a.routing.of(s.num_tokens);
    ops::embed(cx, *embed_, {a.x, a.d, a.cos_sin}, c.rope, s);
    for (int l = 0; l < c.layers(); ++l) {
      const Layer& at = layers_[l];
      if (c.is_recurrent[l]) {
        const ops::DeltaRuleIn in = inputs(l, {a.qkvz, a.gates});
        ops::norm_linear(cx, *at.in, {in.qkvz, a.h, a.y}, a.x, a.d);
        tap(cx, l, {{"x", &a.y}, {"mixer_h", &a.h}, {"qkvz", &in.qkvz}});
        if (!net.here.joined) {
          ops::out_proj(cx, *at.gates, in.gates, a.h, s);
          tap(cx, l, {{"gates", &in.gates}});
        }
        ops::delta_rule(cx, *at.delta, a.mixed, state.recurrent_layer(l), in, s);
        tap(cx, l, {{"mixed", &a.mixed}});
        ops::out_proj(cx, *at.out, a.d, a.mixed, s);
      } else {
        ops::norm_qkv(cx, *at.qkv, {a.q, a.h, a.y, a.q_gate}, state.layer(l), a.x, a.d, a.cos_sin,
                      s);
        tap(cx, l, {{"x", &a.y}, {"mixer_h", &a.h}, {"q", &a.q}, {"q_gate", &a.q_gate}});
        ops::attention(cx, *at.attention, a.att, a.q, state.layer(l), scale, s);
        ops::output_gate(cx, *at.output_gate, a.att, a.q_gate);
        tap(cx, l, {{"att", &a.att}});
        ops::out_proj(cx, *at.out, a.d, a.att, s);
      }
      sum(cx, at.sum_out, a.d);
      tap(cx, l, {{"mixer_d", &a.d}});
      if (l + 1 == c.layers()) {
        s = out_rows_of(cx, s, a.y, a.d, a.x);
        routing = a.routing.of(s.num_tokens);
      }
      ops::norm_route(cx, *at.moe.route, a.x, a.h, routing, a.y, a.d);
      tap(cx, l, {{"moe_h", &a.h}, {"ids", &a.routing.ids}, {"p", &a.routing.p}});
      if (!shared_is_last) {  // else chosen by every token
        ops::shared_up(cx, *at.moe.shared_up, a.shared_u, a.h);
        ops::out_proj(cx, *at.moe.shared_down, a.d, a.shared_u, s);
        tap(cx, l, {{"shared_u", &a.shared_u}, {"shared_d", &a.d}});
      }
      ops::moe_up(cx, *at.moe.up, a.u, a.h, routing);
      tap(cx, l, {{"u", &a.u}});
      ops::moe_down(cx, *at.moe.down, a.d, a.u, routing);
      sum(cx, at.moe.sum, a.d);
      tap(cx, l, {{"moe_d", &a.d}});
    }
    ops::norm_unembed(cx, *unembed_, a.logits, a.h, a.x, a.d, s);
    tap(cx, -1, {{"logits", &a.logits}});
    return a.logits;
  }

  const Qwen3NextConfig c;
  const HeadCuts heads;  // this rank's, as the next four
  const DeltaCuts net;
  const Cut width, shared_width, vocab;
  const bool shared_is_last;
  Acts a;
  std::vector<Layer> layers_;
  const Site *embed_ = nullptr, *unembed_ = nullptr;
};

}  // namespace

std::unique_ptr<SiteModel> make_qwen3_next(const Config& config, Quantization quantization,
                                           const DenseFormats& dense, const Shard& shard) {
  return std::make_unique<Qwen3Next>(parse_qwen3_next(config), dense, std::move(quantization),
                                     shard);
}

std::unique_ptr<SiteModel> make_qwen3_5_moe(const Config& config, Quantization quantization,
                                            const DenseFormats& dense, const Shard& shard) {
  return std::make_unique<Qwen3Next>(parse_qwen3_5_moe(config), dense, std::move(quantization),
                                     shard);
}

}  // namespace nibble
