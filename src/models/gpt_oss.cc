#include "models/gpt_oss.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "models/gpt_oss_config.h"

namespace nibble {
namespace {

using ops::Site;

struct Layer {
  const Site &qkv, &attention, &out, &route, &up, &down;
  const Site *sum_out, *sum_down;  // over the ranks, where there are several
};

// Every buffer of a step.
struct Acts {
  Tensor x;        // [T, H] residual stream, up to a layer's attention
  Tensor y;        // [T, H] the same up to its experts
  Tensor d;        // [T, H] what is still to be added to x
  Tensor h;        // [T, H] normed
  Tensor cos_sin;  // [T, D] angles of this step's positions
  Tensor q, att;   // [T, Q * D]
  RoutingBuffers routing;
  Tensor u;       // [T * K, F] expert activations, in expert order
  Tensor logits;  // [R, V]
};

class GptOss : public SiteModel {
 public:
  GptOss(GptOssConfig config, const DenseFormats& dense, const Shard& shard)
      : SiteModel(dense, {}, shard),
        c(std::move(config)),
        heads(cut_heads(c.q_heads, c.kv_heads, shard)),
        width(cut_columns(c.width, format_row(Format::kMxfp4).block_elems, shard)),
        vocab(cut_vocab(c.vocab)) {
    state_buffers();
    Site& embed = add(-1, ops::EmbedDesc{c.vocab, c.hidden}, {}, {"x", "d", "cos_sin"});
    matrix(embed, "embed", {{"model.embed_tokens", c.vocab}}, c.hidden, Fill::kNormal);
    for (int l = 0; l < c.layers; ++l) layers_.push_back(state_layer(l));
    Site& unembed = add(-1, ops::NormUnembedDesc{c.hidden, vocab.size, dense_.unembed}, {"x", "d"},
                        {"logits", "h"});
    norm(unembed, "model.norm", c.hidden, c.norm_eps);
    matrix(unembed, "unembed", {{"lm_head", vocab}}, c.hidden);
    embed_ = &embed, unembed_ = &unembed;
    describe({.architecture = "GptOssForCausalLM",
              .num_layers = static_cast<int32_t>(c.layers),
              .vocab_size = static_cast<int32_t>(c.vocab),
              .logits = vocab,
              .max_positions = static_cast<int32_t>(c.max_positions),
              .groups = groups()});
  }

 private:
  Cut q_width() const { return heads.q.times(c.head_dim); }
  Cut kv_width() const { return heads.kv.times(c.head_dim); }

  void state_buffers() {
    f32(a.x, "x", c.hidden), f32(a.y, "y", c.hidden), f32(a.d, "d", c.hidden);
    stored(a.h, "h", c.hidden);
    f32(a.cos_sin, "cos_sin", c.head_dim);
    stored(a.q, "q", q_width().size), stored(a.att, "att", q_width().size);
    routing(a.routing, c.experts, c.top_k);
    stored(a.u, "u", width.size, c.top_k);
    f32_of_logits(a.logits, "logits", vocab.size);
  }

  Layer state_layer(int l) {
    const std::string attn = layer_name(l, "self_attn."), mlp = layer_name(l, "mlp.");
    Site& qkv =
        add(l, ops::NormQkvDesc{c.hidden, heads.q.size, heads.kv.size, c.head_dim, dense_.qkv},
            {"x", "d", "cos_sin"}, {"q", "h", "y", "kv"});
    norm(qkv, layer_name(l, "input_layernorm"), c.hidden, c.norm_eps);
    matrix(qkv, "attention",
           {{attn + "q_proj", q_width()},
            {attn + "k_proj", kv_width()},
            {attn + "v_proj", kv_width()}},
           c.hidden, Fill::kScaledNormal, /*has_bias=*/true);
    // Window layers see the last few positions, full layers all. A learned sink logit per head
    // joins the softmax's denominator and attends to nothing.
    Site& attention =
        add(l, ops::AttentionDesc{heads.q.size, heads.kv.size, c.head_dim, c.window_of(l)},
            {"q", "kv"}, {"att"});
    sinks(attention, attn + "sinks", heads.q);
    Site& out = add(l, ops::OutProjDesc{c.hidden, q_width().size, dense_.out}, {"att"}, {"d"});
    matrix(out, "attention", {{attn + "o_proj", c.hidden}}, q_width(), Fill::kResidual,
           /*has_bias=*/true);
    const Site* sum_out = add_sum(l, "d", c.hidden, "out");
    Site& route =
        add(l, ops::NormRouteDesc{c.hidden, c.experts, c.top_k}, {"y", "d"}, {"x", "h", "routing"});
    norm(route, layer_name(l, "post_attention_layernorm"), c.hidden, c.norm_eps);
    matrix(route, "router", {{mlp + "router", c.experts}}, c.hidden, Fill::kRouter,
           /*has_bias=*/true);
    const ops::Swiglu act{.alpha = 1.702f, .shift = 1, .limit = c.swiglu_limit};
    Site& up = add(l,
                   ops::MoeUpDesc{.hidden = c.hidden,
                                  .width = width.size,
                                  .experts = c.experts,
                                  .top_k = c.top_k,
                                  .act = act},
                   {"h", "routing"}, {"u"});
    experts(up, mlp + "experts.gate_up_proj", width.times(2), c.hidden, Fill::kScaledNormal);
    Site& down = add(l,
                     ops::MoeDownDesc{.hidden = c.hidden,
                                      .width = width.size,
                                      .experts = c.experts,
                                      .top_k = c.top_k,
                                      .act = act},
                     {"u", "routing"}, {"d"});
    experts(down, mlp + "experts.down_proj", c.hidden, width, Fill::kResidual);
    const Site* sum_down = add_sum(l, "d", c.hidden, "down");
    return {qkv, attention, out, route, up, down, sum_out, sum_down};
  }

  std::vector<LayerGroup> groups() const {
    std::vector<LayerGroup> groups;
    for (const bool sliding : {false, true}) {
      LayerGroup group{.window = sliding ? c.window : kNoWindow,
                       .num_kv_heads = static_cast<int32_t>(heads.kv.size),
                       .head_dim = static_cast<int32_t>(c.head_dim)};
      for (int32_t l = 0; l < c.layers; ++l)
        if (c.sliding[l] == sliding) group.layers.push_back(l);
      if (!group.layers.empty()) groups.push_back(std::move(group));
    }
    return groups;
  }

  // x += Attn(norm(x)); x += Moe(norm(x)) for each layer, then logits = unembed(norm(x[out_rows])).
  Tensor run(ops::Ctx& cx, const Step& step, const SeqState& kv) override {
    Step s = step;  // of the tokens that the ops to come have
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    Routing routing = a.routing.of(s.num_tokens);
    ops::embed(cx, *embed_, {a.x, a.d, a.cos_sin}, c.rope, s);
    for (int l = 0; l < c.layers; ++l) {
      const Layer& at = layers_[l];
      const Tensor& y = entering(l, a.y);
      ops::norm_qkv(cx, at.qkv, {a.q, a.h, y}, kv.layer(l), a.x, a.d, a.cos_sin, s);
      tap(cx, l, {{"x", &y}, {"attn_h", &a.h}, {"q", &a.q}});
      ops::attention(cx, at.attention, a.att, a.q, kv.layer(l), scale, s);
      tap(cx, l, {{"att", &a.att}});
      ops::out_proj(cx, at.out, a.d, a.att, s);
      sum(cx, at.sum_out, a.d);
      tap(cx, l, {{"attn_d", &a.d}});
      if (l + 1 == c.layers) {
        s = out_rows_of(cx, s, y, a.d, a.x);
        routing = a.routing.of(s.num_tokens);
      }
      ops::norm_route(cx, at.route, a.x, a.h, routing, y, a.d);
      tap(cx, l, {{"moe_h", &a.h}, {"ids", &a.routing.ids}, {"p", &a.routing.p}});
      ops::moe_up(cx, at.up, a.u, a.h, routing);
      tap(cx, l, {{"u", &a.u}});
      ops::moe_down(cx, at.down, a.d, a.u, routing);
      sum(cx, at.sum_down, a.d);
      tap(cx, l, {{"moe_d", &a.d}});
    }
    ops::norm_unembed(cx, *unembed_, a.logits, a.h, a.x, a.d, s);
    tap(cx, -1, {{"logits", &a.logits}});
    return a.logits;
  }

  // transformers saves dequantized experts as bf16 [E, H, 2F], transposed and without blocks.
  void check(const Checkpoint& checkpoint) const override {
    const std::string name = layer_name(0, "mlp.experts.gate_up_proj");
    if (checkpoint.find(name) == nullptr) return;
    throw Error(ErrorKind::kUnsupported,
                checkpoint.origin() + ": " + name +
                    " is not quantized; nibble reads gpt-oss experts as MXFP4 only (" + name +
                    "_blocks and _scales, as openai/gpt-oss-20b has them)");
  }

  const GptOssConfig c;
  const HeadCuts heads;  // this rank's, as the next two
  const Cut width, vocab;
  Acts a;
  std::vector<Layer> layers_;
  const Site *embed_ = nullptr, *unembed_ = nullptr;
};

}  // namespace

std::unique_ptr<SiteModel> make_gpt_oss(const Config& config, Quantization,
                                        const DenseFormats& dense, const Shard& shard) {
  return std::make_unique<GptOss>(parse_gpt_oss_config(config), dense, shard);
}

}  // namespace nibble
