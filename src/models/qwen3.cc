#include "models/qwen3.h"

#include <cmath>
#include <utility>
#include <vector>

#include "models/config_sizes.h"
#include "models/rope_config.h"

namespace nibble {
namespace {

using ops::Site;

struct Qwen3Config {
  int64_t layers = 0;
  int64_t hidden = 0;    // H
  int64_t q_heads = 0;   // Q
  int64_t kv_heads = 0;  // G
  int64_t head_dim = 0;  // D
  int64_t width = 0;     // F
  int64_t vocab = 0;     // V
  int64_t max_positions = 0;
  bool is_tied = false;  // the head's matrix is the embedding's
  float norm_eps = 0;
  ops::Rope rope;
};

Qwen3Config parse_config(const Config& config) {
  if (const std::string act = config.text_or("hidden_act", "silu"); act != "silu")
    config.fail("hidden_act", "is " + act + ", expected silu");
  if (config.boolean_or("attention_bias", false))
    config.fail("attention_bias", "is true; nibble's Qwen3 has no biases");
  if (config.boolean_or("use_sliding_window", false))
    config.fail("use_sliding_window", "is true; nibble's Qwen3 attends to all positions");
  Qwen3Config c;
  c.layers = config.integer("num_hidden_layers", 1, 1000);
  c.hidden = config.integer("hidden_size", 1, kMaxDim);
  c.q_heads = config.integer("num_attention_heads", 1, 4096);
  c.kv_heads = config.integer_or("num_key_value_heads", c.q_heads, 1, 4096);
  c.head_dim = config.integer_or("head_dim", 128, 2, 1024);
  c.width = config.integer("intermediate_size", 1, kMaxDim);
  c.vocab = config.integer("vocab_size", 1, 1 << 24);
  c.max_positions = config.integer("max_position_embeddings", 1, 1 << 30);
  c.is_tied = config.boolean_or("tie_word_embeddings", false);
  c.norm_eps = static_cast<float>(config.number_or("rms_norm_eps", 1e-6, 0, 1));
  check_heads(config, c.q_heads, c.kv_heads, c.head_dim);
  c.rope = parse_rope(config, c.head_dim, c.max_positions, {"default", "yarn"});
  return c;
}

struct Layer {
  const Site &qkv, &attention, &out, &up, &down;
  const Site *sum_out, *sum_down;  // over the ranks, where there are several
};

// Every buffer of a step.
struct Acts {
  Tensor x;        // [T, H] residual stream, up to a layer's attention
  Tensor y;        // [T, H] the same up to its MLP
  Tensor d;        // [T, H] what is still to be added to x
  Tensor h;        // [T, H] normed
  Tensor cos_sin;  // [T, D] angles of this step's positions
  Tensor q, att;   // [T, Q * D]
  Tensor u;        // [T, F]
  Tensor logits;   // [R, V]
};

class Qwen3 : public SiteModel {
 public:
  Qwen3(Qwen3Config config, const DenseFormats& dense, Quantization quantization,
        const Shard& shard)
      : SiteModel(dense, std::move(quantization), shard),
        c(std::move(config)),
        heads(cut_heads(c.q_heads, c.kv_heads, shard)),
        width(cut_columns_of(layer_name(0, "mlp.down_proj"), c.width, dense_.mlp)),
        vocab(cut_vocab(c.vocab)) {
    state_buffers();
    Site& embed = add(-1, ops::EmbedDesc{c.vocab, c.hidden}, {}, {"x", "d", "cos_sin"});
    matrix(embed, "embed", {{"model.embed_tokens", c.vocab}}, c.hidden, Fill::kNormal);
    for (int l = 0; l < c.layers; ++l) layers_.push_back(state_layer(l));
    Site& unembed = add(-1, ops::NormUnembedDesc{c.hidden, vocab.size, dense_.unembed}, {"x", "d"},
                        {"logits", "h"});
    norm(unembed, "model.norm", c.hidden, c.norm_eps);
    if (c.is_tied)
      tie(unembed, embed, vocab);
    else
      matrix(unembed, "unembed", {{"lm_head", vocab}}, c.hidden);
    embed_ = &embed, unembed_ = &unembed;
    LayerGroup all{.num_kv_heads = static_cast<int32_t>(heads.kv.size),
                   .head_dim = static_cast<int32_t>(c.head_dim)};
    for (int32_t l = 0; l < c.layers; ++l) all.layers.push_back(l);
    describe({.architecture = "Qwen3ForCausalLM",
              .num_layers = static_cast<int32_t>(c.layers),
              .vocab_size = static_cast<int32_t>(c.vocab),
              .logits = vocab,
              .max_positions = static_cast<int32_t>(c.max_positions),
              .groups = {all}});
  }

 private:
  Cut q_width() const { return heads.q.times(c.head_dim); }
  Cut kv_width() const { return heads.kv.times(c.head_dim); }

  void state_buffers() {
    f32(a.x, "x", c.hidden), f32(a.y, "y", c.hidden), f32(a.d, "d", c.hidden);
    stored(a.h, "h", c.hidden);
    f32(a.cos_sin, "cos_sin", c.head_dim);
    stored(a.q, "q", q_width().size), stored(a.att, "att", q_width().size);
    stored(a.u, "u", width.size);
    f32_of_logits(a.logits, "logits", vocab.size);
  }

  Layer state_layer(int l) {
    const std::string attn = layer_name(l, "self_attn."), mlp = layer_name(l, "mlp.");
    const ops::NormQkvDesc desc{.hidden = c.hidden,
                                .q_heads = heads.q.size,
                                .kv_heads = heads.kv.size,
                                .head_dim = c.head_dim,
                                .format = dense_.qkv,
                                .norms_heads = true};
    Site& qkv = add(l, desc, {"x", "d", "cos_sin"}, {"q", "h", "y", "kv"});
    norm(qkv, layer_name(l, "input_layernorm"), c.hidden, c.norm_eps);
    matrix(qkv, "attention",
           {{attn + "q_proj", q_width()},
            {attn + "k_proj", kv_width()},
            {attn + "v_proj", kv_width()}},
           c.hidden);
    head_norm(qkv, qkv.q_norm, attn + "q_norm", c.head_dim, c.norm_eps);
    head_norm(qkv, qkv.k_norm, attn + "k_norm", c.head_dim, c.norm_eps);
    Site& attention =
        add(l, ops::AttentionDesc{heads.q.size, heads.kv.size, c.head_dim}, {"q", "kv"}, {"att"});
    Site& out = add(l, ops::OutProjDesc{c.hidden, q_width().size, dense_.out}, {"att"}, {"d"});
    matrix(out, "attention", {{attn + "o_proj", c.hidden}}, q_width(), Fill::kResidual);
    const Site* sum_out = add_sum(l, "d", c.hidden, "out");
    Site& up =
        add(l, ops::MlpUpDesc{c.hidden, width.size, dense_.mlp}, {"y", "d"}, {"u", "h", "x"});
    norm(up, layer_name(l, "post_attention_layernorm"), c.hidden, c.norm_eps);
    gate_up(up, "mlp", {mlp + "gate_proj", width}, {mlp + "up_proj", width}, c.hidden);
    Site& down = add(l, ops::OutProjDesc{c.hidden, width.size, dense_.mlp}, {"u"}, {"d"}, "down");
    matrix(down, "mlp", {{mlp + "down_proj", c.hidden}}, width, Fill::kResidual);
    const Site* sum_down = add_sum(l, "d", c.hidden, "down");
    return {qkv, attention, out, up, down, sum_out, sum_down};
  }

  // x += Attn(norm(x)); x += Mlp(norm(x)) for each layer, then logits = unembed(norm(x[out_rows])).
  Tensor run(ops::Ctx& cx, const Step& step, const SeqState& kv) override {
    Step s = step;  // of the tokens that the ops to come have
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
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
      if (l + 1 == c.layers) s = out_rows_of(cx, s, y, a.d, a.x);
      ops::mlp_up(cx, at.up, {a.u, a.h, a.x}, y, a.d);
      tap(cx, l, {{"mlp_h", &a.h}, {"u", &a.u}});
      ops::out_proj(cx, at.down, a.d, a.u, s);
      sum(cx, at.sum_down, a.d);
      tap(cx, l, {{"mlp_d", &a.d}});
    }
    ops::norm_unembed(cx, *unembed_, a.logits, a.h, a.x, a.d, s);
    tap(cx, -1, {{"logits", &a.logits}});
    return a.logits;
  }

  const Qwen3Config c;
  const HeadCuts heads;  // this rank's, as the next two
  const Cut width, vocab;
  Acts a;
  std::vector<Layer> layers_;
  const Site *embed_ = nullptr, *unembed_ = nullptr;
};

}  // namespace

std::unique_ptr<SiteModel> make_qwen3(const Config& config, Quantization quantization,
                                      const DenseFormats& dense, const Shard& shard) {
  return std::make_unique<Qwen3>(parse_config(config), dense, std::move(quantization), shard);
}

}  // namespace nibble
