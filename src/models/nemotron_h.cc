#include "models/nemotron_h.h"

#include <cmath>
#include <utility>
#include <vector>

#include "models/nemotron_h_config.h"

namespace nibble {
namespace {

using ops::Site;

// Of a layer, by its kind.
struct Layer {
  const Site *in = nullptr, *mamba = nullptr, *out = nullptr;
  const Site *qkv = nullptr, *attention = nullptr;
  const Site *route = nullptr, *up = nullptr, *down = nullptr, *mlp = nullptr;
  const Site* shared_up = nullptr;  // where the shared expert is none of the last
  const Site* sum = nullptr;        // over the ranks, where there are several
};

// Every buffer of a step. A layer takes the residual stream from x or y and leaves it in the other.
struct Acts {
  Tensor x, y;     // [T, H] residual stream
  Tensor d;        // [T, H] what is still to be added to it
  Tensor h;        // [T, H] normed
  Tensor cos_sin;  // [T, D] ones and zeros
  Tensor zxbcdt;   // what enters a Mamba2 layer
  Tensor mixed;    // [T, NH * P] what leaves it
  Tensor q, att;   // [T, Q * D]
  RoutingBuffers routing;
  Tensor shared_u;  // [T, the shared expert's width]
  Tensor u;         // [T * K, F] expert activations, in expert order
  Tensor mlp_u;     // [T, an MLP's width]
  Tensor logits;    // [R, V]
};

class NemotronH : public SiteModel {
 public:
  NemotronH(NemotronHConfig config, const DenseFormats& dense, Quantization quantization,
            const Shard& shard)
      : SiteModel(dense, std::move(quantization), shard),
        c(std::move(config)),
        heads(cut_heads(c.q_heads, c.kv_heads, shard)),
        rule(c.mamba, shard),
        vocab(cut_vocab(c.vocab)),
        num_shared(count_shared()) {
    for (int l = 0; l < c.layers(); ++l) cut_widths(l);
    state_buffers();
    Site& embed = add(-1, ops::EmbedDesc{c.vocab, c.hidden}, {}, {"x", "d", "cos_sin"});
    matrix(embed, "embed", {{"backbone.embeddings", c.vocab}}, c.hidden, Fill::kNormal);
    LayerGroup full{.num_kv_heads = static_cast<int32_t>(heads.kv.size),
                    .head_dim = static_cast<int32_t>(c.head_dim)},
        recurrent{.recurrent = recurrent_shape()};
    for (int32_t l = 0; l < c.layers(); ++l) {
      const char kind = c.mixers[l];
      layers_.push_back(kind == 'M'   ? state_mamba(l)
                        : kind == '*' ? state_attention(l)
                        : kind == 'E' ? state_experts(l)
                                      : state_mlp(l));
      if (kind == 'M') recurrent.layers.push_back(l);
      if (kind == '*') full.layers.push_back(l);
    }
    Site& unembed = add(-1, ops::NormUnembedDesc{c.hidden, vocab.size, dense_.unembed},
                        {from(c.layers()), "d"}, {"logits", "h"});
    norm(unembed, "backbone.norm_f", c.hidden, c.norm_eps);
    matrix(unembed, "unembed", {{"lm_head", vocab}}, c.hidden);
    embed_ = &embed, unembed_ = &unembed;
    std::vector<LayerGroup> groups;
    for (const LayerGroup& group : {full, recurrent})
      if (!group.layers.empty()) groups.push_back(group);
    describe({.architecture = "NemotronHForCausalLM",
              .num_layers = static_cast<int32_t>(c.layers()),
              .vocab_size = static_cast<int32_t>(c.vocab),
              .logits = vocab,
              .max_positions = static_cast<int32_t>(c.max_positions),
              .groups = std::move(groups)});
  }

 private:
  // How many more of the experts the shared one can be: of their formats, and several times as
  // wide, where no block lies in two of them. None: it stays by itself.
  int64_t count_shared() const {
    if (!c.has('E') || c.shared_width % c.expert_width != 0) return 0;
    const int64_t count = c.shared_width / c.expert_width;
    for (int64_t l = 0; l < c.layers(); ++l) {
      if (c.mixers[l] != 'E') continue;
      const std::string shared = name_of(l) + "shared_experts";
      const Format of_columns = quantization_.format_of(shared + ".down_proj");
      if (count > 1 && c.expert_width % format_row(of_columns).block_elems != 0) return 0;
      if (!joins_experts(shared, name_of(l) + "experts.0", {"up_proj", "down_proj"},
                         c.experts + count, c.top_k + count))
        return 0;
    }
    return count;
  }

  static const char* from(int64_t layer) { return layer % 2 == 0 ? "x" : "y"; }
  static const char* to(int64_t layer) { return from(layer + 1); }
  static std::string name_of(int64_t l) { return layer_name("backbone.", l, "mixer."); }

  Cut q_width() const { return heads.q.times(c.head_dim); }
  Cut kv_width() const { return heads.kv.times(c.head_dim); }

  // Of experts and MLPs, by the format that the first of each has.
  void cut_widths(int l) {
    const auto cut = [&](Cut& to, int64_t width, const std::string& module, Format encoded) {
      if (to.all == 0) to = cut_columns_of(name_of(l) + module, width, encoded);
    };
    if (c.mixers[l] == 'E') {
      cut(expert_width, c.expert_width, "experts.0.down_proj", Format::kBF16);
      cut(shared_width, c.shared_width, "shared_experts.down_proj", dense_.mlp);
    }
    if (c.mixers[l] == '-') cut(width, c.width, "down_proj", dense_.mlp);
  }

  void state_buffers() {
    f32(a.x, "x", c.hidden), f32(a.y, "y", c.hidden), f32(a.d, "d", c.hidden);
    stored(a.h, "h", c.hidden);
    f32(a.cos_sin, "cos_sin", c.head_dim);
    f32(a.zxbcdt, "zxbcdt", rule.here.width()), stored(a.mixed, "mixed", rule.here.inner());
    stored(a.q, "q", q_width().size), stored(a.att, "att", q_width().size);
    if (c.has('E')) {
      routing(a.routing, c.experts + num_shared, c.top_k + num_shared);
      if (num_shared == 0) stored(a.shared_u, "shared_u", shared_width.size);
      stored(a.u, "u", expert_width.size, c.top_k + num_shared);
    }
    if (c.has('-')) stored(a.mlp_u, "mlp_u", width.size);
    f32_of_logits(a.logits, "logits", vocab.size);
  }

  RecurrentShape recurrent_shape() const {
    return {.heads = static_cast<int32_t>(rule.here.heads),
            .key_dim = static_cast<int32_t>(rule.here.state_dim),
            .value_dim = static_cast<int32_t>(rule.here.head_dim),
            .channels = static_cast<int32_t>(rule.here.channels()),
            .taps = static_cast<int32_t>(rule.here.taps)};
  }

  void state_norm(Site& site, int l) {
    norm(site, layer_name("backbone.", l, "norm"), c.hidden, c.norm_eps);
  }

  Layer state_mamba(int l) {
    Site& in = add(l, ops::NormLinearDesc{c.hidden, rule.here.width(), dense_.qkv}, {from(l), "d"},
                   {"zxbcdt", "h", to(l)});
    state_norm(in, l);
    matrix(in, "mamba", {{name_of(l) + "in_proj", rule.inputs}}, c.hidden);
    Site& mixer = add(l, rule.here, {"zxbcdt", "kv"}, {"mixed", "kv"});
    mamba(mixer, name_of(l), c.norm_eps, rule.channels, rule.heads);
    const Cut inner = rule.heads.times(c.mamba.head_dim);
    Site& out = add(l, ops::OutProjDesc{c.hidden, inner.size, dense_.out}, {"mixed"}, {"d"});
    matrix(out, "mamba", {{name_of(l) + "out_proj", c.hidden}}, inner, Fill::kResidual);
    return {.in = &in, .mamba = &mixer, .out = &out, .sum = add_sum(l, "d", c.hidden, "out")};
  }

  Layer state_attention(int l) {
    Site& qkv = add(l,
                    ops::NormQkvDesc{.hidden = c.hidden,
                                     .q_heads = heads.q.size,
                                     .kv_heads = heads.kv.size,
                                     .head_dim = c.head_dim,
                                     .format = dense_.qkv},
                    {from(l), "d", "cos_sin"}, {"q", "h", to(l), "kv"});
    state_norm(qkv, l);
    matrix(qkv, "attention",
           {{name_of(l) + "q_proj", q_width()},
            {name_of(l) + "k_proj", kv_width()},
            {name_of(l) + "v_proj", kv_width()}},
           c.hidden);
    Site& attention =
        add(l, ops::AttentionDesc{heads.q.size, heads.kv.size, c.head_dim}, {"q", "kv"}, {"att"});
    Site& out = add(l, ops::OutProjDesc{c.hidden, q_width().size, dense_.out}, {"att"}, {"d"});
    matrix(out, "attention", {{name_of(l) + "o_proj", c.hidden}}, q_width(), Fill::kResidual);
    return {
        .out = &out, .qkv = &qkv, .attention = &attention, .sum = add_sum(l, "d", c.hidden, "out")};
  }

  Layer state_experts(int l) {
    const std::string name = name_of(l);
    const int64_t experts = c.experts + num_shared, top_k = c.top_k + num_shared;
    Layer layer;
    Site& route = add(l,
                      ops::NormRouteDesc{.hidden = c.hidden,
                                         .experts = experts,
                                         .top_k = top_k,
                                         .over_all = c.over_all,
                                         .sigmoid = c.sigmoid,
                                         .shared = num_shared},
                      {from(l), "d"}, {to(l), "h", "routing"});
    state_norm(route, l);
    matrix(route, "router", {{name + "gate", c.experts}}, c.hidden, Fill::kRouter);
    route_bias(route, name + "gate.e_score_correction_bias", c.experts);
    if (num_shared == 0) state_shared(layer, l);
    Site& up = add(l,
                   ops::MoeUpDesc{.hidden = c.hidden,
                                  .width = expert_width.size,
                                  .experts = experts,
                                  .top_k = top_k,
                                  .format = Format::kBF16,
                                  .act = ops::kRelu2,
                                  .shared = num_shared},
                   {"h", "routing"}, {"u"});
    experts_apart(up, name + "experts", {"up_proj"}, expert_width, c.hidden, Fill::kScaledNormal);
    const std::string beside = name + "shared_experts";
    for (const Cut& part : shared_parts())
      last_expert(up, beside, {"up_proj"}, part, c.hidden, Fill::kScaledNormal);
    std::vector<std::string> reads = {"u", "routing"};
    if (num_shared == 0) reads.push_back("d");
    Site& down = add(l,
                     ops::MoeDownDesc{.hidden = c.hidden,
                                      .width = expert_width.size,
                                      .experts = experts,
                                      .top_k = top_k,
                                      .format = Format::kBF16,
                                      .act = ops::kRelu2,
                                      .adds = num_shared == 0,
                                      .shared = num_shared},
                     std::move(reads), {"d"});
    experts_apart(down, name + "experts", {"down_proj"}, c.hidden, expert_width, Fill::kResidual);
    for (const Cut& part : shared_parts())
      last_expert(down, beside, {"down_proj"}, c.hidden, part, Fill::kResidual);
    layer.route = &route, layer.up = &up, layer.down = &down;
    layer.sum = add_sum(l, "d", c.hidden, "down");
    return layer;
  }

  // Of the shared expert's width each expert's, cut as that is.
  std::vector<Cut> shared_parts() const {
    std::vector<Cut> parts;
    for (int64_t i = 0; i < num_shared; ++i)
      parts.emplace_back(c.shared_width, i * c.expert_width + expert_width.begin,
                         expert_width.size);
    return parts;
  }

  void state_shared(Layer& layer, int l) {
    const std::string beside = name_of(l) + "shared_experts.";
    Site& up = add(l,
                   ops::SharedUpDesc{.hidden = c.hidden,
                                     .width = shared_width.size,
                                     .format = dense_.mlp,
                                     .act = ops::kRelu2},
                   {"h"}, {"shared_u"});
    matrix(up, "shared expert", {{beside + "up_proj", shared_width}}, c.hidden);
    Site& out = add(l, ops::OutProjDesc{c.hidden, shared_width.size, dense_.mlp}, {"shared_u"},
                    {"d"}, "shared");
    matrix(out, "shared expert", {{beside + "down_proj", c.hidden}}, shared_width, Fill::kResidual);
    layer.shared_up = &up, layer.out = &out;
  }

  Layer state_mlp(int l) {
    Site& up =
        add(l,
            ops::MlpUpDesc{
                .hidden = c.hidden, .width = width.size, .format = dense_.mlp, .act = ops::kRelu2},
            {from(l), "d"}, {"mlp_u", "h", to(l)});
    state_norm(up, l);
    matrix(up, "mlp", {{name_of(l) + "up_proj", width}}, c.hidden);
    Site& out = add(l, ops::OutProjDesc{c.hidden, width.size, dense_.mlp}, {"mlp_u"}, {"d"});
    matrix(out, "mlp", {{name_of(l) + "down_proj", c.hidden}}, width, Fill::kResidual);
    return {.out = &out, .mlp = &up, .sum = add_sum(l, "d", c.hidden, "down")};
  }

  // x += Mixer(norm(x)) for each layer, then logits = unembed(norm(x[out_rows])).
  Tensor run(ops::Ctx& cx, const Step& step, const SeqState& state) override {
    Step s = step;  // of the tokens that the ops to come have
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    Routing routing = c.has('E') ? a.routing.of(s.num_tokens) : Routing{};
    ops::embed(cx, *embed_, {a.x, a.d, a.cos_sin}, c.rope, s);
    const Tensor *x = &a.x, *y = &a.y;
    for (int l = 0; l < c.layers(); ++l, std::swap(x, y)) {
      const Layer& at = layers_[l];
      if (l + 1 == c.layers() && (c.mixers[l] == 'E' || c.mixers[l] == '-')) {
        s = out_rows_of(cx, s, *x, a.d, *y);
        if (c.has('E')) routing = a.routing.of(s.num_tokens);
      }
      switch (c.mixers[l]) {
        case 'M': {
          const Tensor& in = inputs(l, a.zxbcdt);
          ops::norm_linear(cx, *at.in, {in, a.h, *y}, *x, a.d);
          ops::mamba2(cx, *at.mamba, a.mixed, state.recurrent_layer(l), in, s);
          tap(cx, l, {{"h", &a.h}, {"zxbcdt", &in}, {"mixed", &a.mixed}});
          ops::out_proj(cx, *at.out, a.d, a.mixed, s);
          break;
        }
        case '*':
          ops::norm_qkv(cx, *at.qkv, {a.q, a.h, *y}, state.layer(l), *x, a.d, a.cos_sin, s);
          ops::attention(cx, *at.attention, a.att, a.q, state.layer(l), scale, s);
          tap(cx, l, {{"h", &a.h}, {"q", &a.q}, {"att", &a.att}});
          ops::out_proj(cx, *at.out, a.d, a.att, s);
          break;
        case 'E':
          ops::norm_route(cx, *at.route, *y, a.h, routing, *x, a.d);
          tap(cx, l, {{"h", &a.h}, {"ids", &a.routing.ids}, {"p", &a.routing.p}});
          if (num_shared == 0) {  // else chosen by every token
            ops::shared_up(cx, *at.shared_up, a.shared_u, a.h);
            ops::out_proj(cx, *at.out, a.d, a.shared_u, s);
            tap(cx, l, {{"shared_u", &a.shared_u}, {"shared_d", &a.d}});
          }
          ops::moe_up(cx, *at.up, a.u, a.h, routing);
          tap(cx, l, {{"u", &a.u}});
          ops::moe_down(cx, *at.down, a.d, a.u, routing);
          break;
        default:
          ops::mlp_up(cx, *at.mlp, {a.mlp_u, a.h, *y}, *x, a.d);
          tap(cx, l, {{"h", &a.h}, {"u", &a.mlp_u}});
          ops::out_proj(cx, *at.out, a.d, a.mlp_u, s);
      }
      sum(cx, at.sum, a.d);
      tap(cx, l, {{"x", y}, {"mixer_d", &a.d}});
    }
    ops::norm_unembed(cx, *unembed_, a.logits, a.h, *x, a.d, s);
    tap(cx, -1, {{"logits", &a.logits}});
    return a.logits;
  }

  const NemotronHConfig c;
  const HeadCuts heads;  // this rank's, as the next five
  const MambaCuts rule;
  const Cut vocab;
  const int64_t num_shared;               // of the experts, the last
  Cut width, expert_width, shared_width;  // none where no layer has it
  Acts a;
  std::vector<Layer> layers_;
  const Site *embed_ = nullptr, *unembed_ = nullptr;
};

}  // namespace

std::unique_ptr<SiteModel> make_nemotron_h(const Config& config, Quantization quantization,
                                           const DenseFormats& dense, const Shard& shard) {
  return std::make_unique<NemotronH>(parse_nemotron_h(config), dense, std::move(quantization),
                                     shard);
}

}  // namespace nibble
