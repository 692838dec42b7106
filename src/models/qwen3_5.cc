#include "models/qwen3_5.h"

#include <cmath>
#include <utility>
#include <vector>

#include "models/hybrid_config.h"
#include "models/qwen3_5_config.h"

namespace nibble {
namespace {

using ops::Site;

// Of a layer: one of the first two pairs, and the rest.
struct Layer {
  const Site *in = nullptr, *gates = nullptr, *delta = nullptr;
  const Site *qkv = nullptr, *attention = nullptr, *output_gate = nullptr;
  const Site *out, *up, *down;
};

// Every buffer of a step.
struct Acts {
  Tensor x;            // [T, H] residual stream, up to a layer's mixer
  Tensor y;            // [T, H] the same up to its MLP
  Tensor d;            // [T, H] what is still to be added to x
  Tensor h;            // [T, H] normed
  Tensor cos_sin;      // [T, R] angles of this step's positions
  Tensor qkvz, gates;  // what enters a delta rule
  Tensor mixed;        // [T, HV * DV] what leaves it
  Tensor q, att;       // [T, Q * D]
  Tensor q_gate;       // [T, Q * D]
  Tensor u;            // [T, F]
  Tensor logits;       // [R, V]
};

class Qwen35 : public SiteModel {
 public:
  Qwen35(Qwen35Config config, const DenseFormats& dense, Quantization quantization)
      : SiteModel(dense, std::move(quantization)), c(std::move(config)) {
    state_buffers();
    Site& embed = add(-1, ops::EmbedDesc{c.vocab, c.hidden}, {}, {"x", "d", "cos_sin"});
    matrix(embed, "embed", {{c.prefix + "embed_tokens", c.vocab}}, c.hidden, Fill::kNormal);
    LayerGroup full{.num_kv_heads = static_cast<int32_t>(c.kv_heads),
                    .head_dim = static_cast<int32_t>(c.head_dim)},
        recurrent{.recurrent = recurrent_shape(c.delta)};
    for (int32_t l = 0; l < c.layers(); ++l) {
      Layer layer;
      c.is_recurrent[l] ? state_delta(layer, l) : state_attention(layer, l);
      state_mlp(layer, l);
      layers_.push_back(layer);
      (c.is_recurrent[l] ? recurrent : full).layers.push_back(l);
    }
    Site& unembed = add(-1, ops::NormUnembedDesc{c.hidden, c.vocab, dense_.unembed}, {"x", "d"},
                        {"logits", "h"});
    norm(unembed, c.prefix + "norm", c.hidden, c.norm_eps, 1);
    if (c.is_tied)
      tie(unembed, embed, c.vocab);
    else
      matrix(unembed, "unembed", {{"lm_head", c.vocab}}, c.hidden);
    embed_ = &embed, unembed_ = &unembed;
    std::vector<LayerGroup> groups;
    for (const LayerGroup& group : {full, recurrent})
      if (!group.layers.empty()) groups.push_back(group);
    describe({.architecture = c.architecture,
              .num_layers = static_cast<int32_t>(c.layers()),
              .vocab_size = static_cast<int32_t>(c.vocab),
              .max_positions = static_cast<int32_t>(c.max_positions),
              .groups = std::move(groups)});
  }

 private:
  void state_buffers() {
    f32(a.x, "x", c.hidden), f32(a.y, "y", c.hidden), f32(a.d, "d", c.hidden);
    stored(a.h, "h", c.hidden);
    f32(a.cos_sin, "cos_sin", c.rotary_dim());
    f32(a.qkvz, "qkvz", c.delta.width()), f32(a.gates, "gates", 2 * c.delta.value_heads);
    stored(a.mixed, "mixed", c.delta.value_width());
    stored(a.q, "q", c.q_width()), stored(a.att, "att", c.q_width());
    f32(a.q_gate, "q_gate", c.q_width());
    stored(a.u, "u", c.width);
    f32_of_logits(a.logits, "logits", c.vocab);
  }

  void state_delta(Layer& layer, int l) {
    const std::string name = layer_name(c.prefix, l, "linear_attn.");
    Site& in = add(l, ops::NormLinearDesc{c.hidden, c.delta.width(), dense_.qkv}, {"x", "d"},
                   {"qkvz", "h", "y"});
    norm(in, layer_name(c.prefix, l, "input_layernorm"), c.hidden, c.norm_eps, 1);
    matrix(
        in, "delta net",
        {{name + "in_proj_qkv", c.delta.channels()}, {name + "in_proj_z", c.delta.value_width()}},
        c.hidden);
    Site& gates =
        add(l, ops::OutProjDesc{2 * c.delta.value_heads, c.hidden}, {"h"}, {"gates"}, "gates");
    matrix(gates, "delta net",
           {{name + "in_proj_b", c.delta.value_heads}, {name + "in_proj_a", c.delta.value_heads}},
           c.hidden);
    Site& rule = add(l, c.delta, {"qkvz", "gates", "kv"}, {"mixed", "kv"});
    delta(rule, name, c.norm_eps);
    Site& out =
        add(l, ops::OutProjDesc{c.hidden, c.delta.value_width(), dense_.out}, {"mixed"}, {"d"});
    matrix(out, "delta net", {{name + "out_proj", c.hidden}}, c.delta.value_width(),
           Fill::kResidual);
    layer.in = &in, layer.gates = &gates, layer.delta = &rule, layer.out = &out;
  }

  void state_attention(Layer& layer, int l) {
    const std::string name = layer_name(c.prefix, l, "self_attn.");
    Site& qkv = add(l,
                    ops::NormQkvDesc{.hidden = c.hidden,
                                     .q_heads = c.q_heads,
                                     .kv_heads = c.kv_heads,
                                     .head_dim = c.head_dim,
                                     .format = dense_.qkv,
                                     .norms_heads = true,
                                     .has_gates = true,
                                     .rotary_dim = c.rotary_dim()},
                    {"x", "d", "cos_sin"}, {"q", "h", "y", "kv", "q_gate"});
    norm(qkv, layer_name(c.prefix, l, "input_layernorm"), c.hidden, c.norm_eps, 1);
    matrix(qkv, "attention",
           {{name + "q_proj", 2 * c.q_width()},
            {name + "k_proj", c.kv_width()},
            {name + "v_proj", c.kv_width()}},
           c.hidden);
    head_norm(qkv, qkv.q_norm, name + "q_norm", c.head_dim, c.norm_eps, 1);
    head_norm(qkv, qkv.k_norm, name + "k_norm", c.head_dim, c.norm_eps, 1);
    layer.qkv = &qkv;
    layer.attention =
        &add(l, ops::AttentionDesc{c.q_heads, c.kv_heads, c.head_dim}, {"q", "kv"}, {"att"});
    layer.output_gate = &add(l, ops::OutputGateDesc{c.q_width()}, {"att", "q_gate"}, {"att"});
    Site& out = add(l, ops::OutProjDesc{c.hidden, c.q_width(), dense_.out}, {"att"}, {"d"});
    matrix(out, "attention", {{name + "o_proj", c.hidden}}, c.q_width(), Fill::kResidual);
    layer.out = &out;
  }

  void state_mlp(Layer& layer, int l) {
    const std::string mlp = layer_name(c.prefix, l, "mlp.");
    Site& up = add(l, ops::MlpUpDesc{c.hidden, c.width, dense_.mlp}, {"y", "d"}, {"u", "h", "x"});
    norm(up, layer_name(c.prefix, l, "post_attention_layernorm"), c.hidden, c.norm_eps, 1);
    gate_up(up, "mlp", {mlp + "gate_proj", c.width}, {mlp + "up_proj", c.width}, c.hidden);
    Site& down = add(l, ops::OutProjDesc{c.hidden, c.width, dense_.mlp}, {"u"}, {"d"}, "down");
    matrix(down, "mlp", {{mlp + "down_proj", c.hidden}}, c.width, Fill::kResidual);
    layer.up = &up, layer.down = &down;
  }

  // x += Mixer(norm(x)); x += Mlp(norm(x)) for each layer, then logits =
  // unembed(norm(x[out_rows])).
  Tensor run(ops::Ctx& cx, const Step& s, const SeqState& state) override {
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    ops::embed(cx, *embed_, {a.x, a.d, a.cos_sin}, c.rope, s);
    for (int l = 0; l < c.layers(); ++l) {
      const Layer& at = layers_[l];
      if (c.is_recurrent[l]) {
        const ops::DeltaRuleIn in = inputs(l, {a.qkvz, a.gates});
        ops::norm_linear(cx, *at.in, {in.qkvz, a.h, a.y}, a.x, a.d);
        ops::out_proj(cx, *at.gates, in.gates, a.h, s);
        tap(cx, l, {{"x", &a.y}, {"mixer_h", &a.h}, {"qkvz", &in.qkvz}, {"gates", &in.gates}});
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
      tap(cx, l, {{"mixer_d", &a.d}});
      ops::mlp_up(cx, *at.up, {a.u, a.h, a.x}, a.y, a.d);
      tap(cx, l, {{"mlp_h", &a.h}, {"u", &a.u}});
      ops::out_proj(cx, *at.down, a.d, a.u, s);
      tap(cx, l, {{"mlp_d", &a.d}});
    }
    ops::norm_unembed(cx, *unembed_, a.logits, a.h, a.x, a.d, s);
    tap(cx, -1, {{"logits", &a.logits}});
    return a.logits;
  }

  const Qwen35Config c;
  Acts a;
  std::vector<Layer> layers_;
  const Site *embed_ = nullptr, *unembed_ = nullptr;
};

}  // namespace

std::unique_ptr<SiteModel> make_qwen3_5(const Config& config, const DenseFormats& dense) {
  return std::make_unique<Qwen35>(parse_qwen3_5(config), dense, Quantization(config));
}

}  // namespace nibble
