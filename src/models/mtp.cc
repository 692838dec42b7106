#include "models/mtp.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "ops/draft_head/draft_head.h"

namespace nibble {
namespace {

using ops::Site;

// Every buffer of a step.
struct Acts {
  Tensor e, none;         // [T, H] embedded tokens; zeros: nothing is pending behind a product
  Tensor cos_sin;         // [T, R] angles of this step's positions
  Tensor both;            // [T, 2 H] token and hidden row, each normed
  Tensor g, y;            // [T, H] what fc makes of them; residual stream, up to the MLP
  Tensor q, q_gate, att;  // [T, Q * D]
  Tensor h;               // [T, H] normed
  RoutingBuffers routing;
  Tensor shared_u;  // [T, the shared expert's width]
  Tensor u;         // [T * K, F] or, of an MLP, [T, F]
  Tensor x, d;      // [T, H] residual stream, and what is still to be added to it
  Tensor logits;    // [R, V'], of the ids that it drafts
};

class Mtp : public MtpModel {
 public:
  Mtp(MtpConfig config, const DenseFormats& dense, Quantization quantization,
      const std::vector<int32_t>& ids)
      : MtpModel(dense, std::move(quantization)),
        c(std::move(config)),
        shared_is_last(is_shared_alike()),
        has_some_ids_(!ids.empty()),
        ids_(ids) {
    if (!has_some_ids_) {
      ids_.resize(c.vocab);
      std::iota(ids_.begin(), ids_.end(), 0);
    }
    state_buffers();
    embed_ = &add(-1, ops::EmbedDesc{c.vocab, c.hidden}, {}, {"e", "none", "cos_sin"});
    Site& fc = add(-1, ops::OutProjDesc{c.hidden, 2 * c.hidden, dense_.out}, {"both"}, {"g"}, "fc");
    head_norm(fc, token_norm_, "mtp.pre_fc_norm_embedding", c.hidden, c.norm_eps, 1);
    head_norm(fc, hidden_norm_, "mtp.pre_fc_norm_hidden", c.hidden, c.norm_eps, 1);
    matrix(fc, "fc", {{"mtp.fc", c.hidden}}, 2 * c.hidden);
    fc_ = &fc;
    state_attention();
    if (c.experts > 0)
      moe_ = gated_experts(0, {.in = "mtp.layers.0.",
                               .hidden = c.hidden,
                               .experts = c.experts,
                               .top_k = c.top_k,
                               .over_all = c.over_all,
                               .width = c.width,
                               .shared_width = c.shared_width,
                               .shared_is_last = shared_is_last,
                               .of_bf16 = dense_.mlp,
                               .norm_eps = c.norm_eps});
    else
      state_mlp();
    unembed_ = &add(-1, ops::NormUnembedDesc{c.hidden, std::ssize(ids_), dense_.unembed},
                    {"x", "d"}, {"logits", "h"});
    norm(*unembed_, "mtp.norm", c.hidden, c.norm_eps, 1);
    describe({.architecture = "MTP",
              .num_layers = 1,
              .vocab_size = static_cast<int32_t>(ids_.size()),
              .max_positions = c.max_positions,
              .groups = {{.layers = {0},
                          .num_kv_heads = static_cast<int32_t>(c.kv_heads),
                          .head_dim = static_cast<int32_t>(c.head_dim)}}});
  }

  const MtpConfig& config() const override { return c; }
  Model& model() override { return *this; }
  const std::vector<int32_t>& target_layers() const override { return layers_; }
  const std::vector<int32_t>& target_ids() const override { return ids_; }
  void set_input(DraftInput input) override { input_ = std::move(input); }
  void share_matrices(const SiteModel& target) override {
    const Site &embed = target.sites().front(), &head = target.sites().back();
    // Of several ranks each has a part of its head, and a draft is made on one.
    const bool is_whole = head.weight.rows == c.vocab;
    if (has_some_ids_ || (!is_whole && !c.is_tied)) {
      own_head_ = c.is_tied ? embedding_name(target) : "lm_head";
      matrix(*unembed_, "unembed", {{own_head_, Cuts::rows(ids_, c.vocab)}}, c.hidden);
    } else {
      share(*unembed_, is_whole ? head : embed);
      if (!is_whole) unembed_->in_rows = true;
    }
    share(*embed_, embed);
  }

 private:
  static std::string embedding_name(const SiteModel& target) {
    const std::string name = target.weight_specs().front().name;
    return name.substr(0, name.rfind(".weight"));
  }

  bool reads(const std::string& tensor) const override {
    return tensor.starts_with("mtp.") ||
           (!own_head_.empty() && tensor.starts_with(own_head_ + "."));
  }

  void check(const Checkpoint& checkpoint) const override {
    std::set<std::string> there;
    for (const WeightInfo& info : list_weights(checkpoint)) there.insert(info.name);
    const auto num_mtp = std::ranges::count_if(
        there, [](const std::string& name) { return name.starts_with("mtp."); });
    const auto fail = [&](const std::string& what) {
      throw Error(ErrorKind::kCheckpoint, checkpoint.origin() + ": " + what);
    };
    for (const WeightSpec& spec : weight_specs()) {
      if (there.contains(spec.name)) continue;
      if (num_mtp == 0)
        fail(
            "has no tensors mtp.*; \"model\" may name a directory of the same model that has them");
      if (!spec.name.starts_with("mtp."))
        fail("has no " + spec.name +
             " beside its tensors mtp.*; an MTP layer of several ranks, or with ids of its own, "
             "reads it from there");
      fail("has " + std::to_string(num_mtp) + " weights mtp.*, but not " + spec.name);
    }
  }

  void state_buffers() {
    f32(a.e, "e", c.hidden), f32(a.none, "none", c.hidden);
    f32(a.cos_sin, "cos_sin", c.rotary_dim());
    stored(a.both, "both", 2 * c.hidden);
    f32(a.g, "g", c.hidden), f32(a.y, "y", c.hidden);
    stored(a.q, "q", c.q_width()), f32(a.q_gate, "q_gate", c.q_width());
    stored(a.att, "att", c.q_width()), stored(a.h, "h", c.hidden);
    if (c.experts > 0) {
      routing(a.routing, c.experts + shared_is_last, c.top_k + shared_is_last);
      if (!shared_is_last) stored(a.shared_u, "shared_u", c.shared_width);
    }
    stored(a.u, "u", c.width, std::max<int64_t>(c.top_k + shared_is_last, 1));
    f32(a.x, "x", c.hidden), f32(a.d, "d", c.hidden);
    f32_of_logits(a.logits, "logits", std::ssize(ids_));
  }

  void state_attention() {
    const std::string name = "mtp.layers.0.self_attn.";
    Site& qkv = add(0,
                    ops::NormQkvDesc{.hidden = c.hidden,
                                     .q_heads = c.q_heads,
                                     .kv_heads = c.kv_heads,
                                     .head_dim = c.head_dim,
                                     .format = dense_.qkv,
                                     .norms_heads = true,
                                     .has_gates = true,
                                     .rotary_dim = c.rotary_dim()},
                    {"g", "none", "cos_sin"}, {"q", "h", "y", "kv", "q_gate"});
    norm(qkv, "mtp.layers.0.input_layernorm", c.hidden, c.norm_eps, 1);
    matrix(qkv, "attention",
           {{name + "q_proj", 2 * c.q_width()},
            {name + "k_proj", c.kv_width()},
            {name + "v_proj", c.kv_width()}},
           c.hidden);
    head_norm(qkv, qkv.q_norm, name + "q_norm", c.head_dim, c.norm_eps, 1);
    head_norm(qkv, qkv.k_norm, name + "k_norm", c.head_dim, c.norm_eps, 1);
    attention_ =
        &add(0, ops::AttentionDesc{c.q_heads, c.kv_heads, c.head_dim}, {"q", "kv"}, {"att"});
    gate_ = &add(0, ops::OutputGateDesc{c.q_width()}, {"att", "q_gate"}, {"att"});
    Site& out = add(0, ops::OutProjDesc{c.hidden, c.q_width(), dense_.out}, {"att"}, {"d"});
    matrix(out, "attention", {{name + "o_proj", c.hidden}}, c.q_width(), Fill::kResidual);
    qkv_ = &qkv, out_ = &out;
  }

  // Whether the shared expert can be one more of the experts: of their width and formats.
  bool is_shared_alike() const {
    const std::string mlp = "mtp.layers.0.mlp.";
    return c.experts > 0 && c.shared_width == c.width &&
           joins_experts(mlp + "shared_expert", mlp + "experts.0",
                         {"gate_proj", "up_proj", "down_proj"}, c.experts + 1, c.top_k + 1,
                         dense_.mlp);
  }

  void state_mlp() {
    const std::string mlp = "mtp.layers.0.mlp.";
    Site& up = add(0, ops::MlpUpDesc{c.hidden, c.width, dense_.mlp}, {"y", "d"}, {"u", "h", "x"});
    norm(up, "mtp.layers.0.post_attention_layernorm", c.hidden, c.norm_eps, 1);
    gate_up(up, "mlp", {mlp + "gate_proj", c.width}, {mlp + "up_proj", c.width}, c.hidden);
    Site& down = add(0, ops::OutProjDesc{c.hidden, c.width, dense_.mlp}, {"u"}, {"d"}, "down");
    matrix(down, "mlp", {{mlp + "down_proj", c.hidden}}, c.width, Fill::kResidual);
    up_ = &up, down_ = &down;
  }

  // y = fc([norm(token); norm(hidden)]); y += Attn(norm(y)); y += Mlp(norm(y)); logits =
  // unembed(norm(y)). The next draft's hidden row is what that last norm gives.
  Tensor run(ops::Ctx& cx, const Step& s, const SeqState& kv) override {
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    const bool is_fed = !input_.target.empty();
    ops::embed(cx, *embed_, {a.e, a.none, a.cos_sin}, c.rope, s);
    const std::array<ops::RowPart, 2> parts{{{.x = a.e, .norm = token_norm_},
                                             {.x = is_fed ? input_.target[0] : a.x,
                                              .d = is_fed ? Tensor{} : a.d,
                                              .rows = input_.rows,
                                              .first = is_fed ? Norm{} : unembed_->norm,
                                              .norm = hidden_norm_}}};
    ops::join_rows(cx, {a.both}, parts, {});
    ops::out_proj(cx, *fc_, a.g, a.both, s);
    tap(cx, -1, {{"draft_both", &a.both}, {"draft_g", &a.g}});
    ops::norm_qkv(cx, *qkv_, {a.q, a.h, a.y, a.q_gate}, kv.layer(0), a.g, a.none, a.cos_sin, s);
    if (s.num_out == 0) return a.logits;  // fed for its keys and values
    ops::attention(cx, *attention_, a.att, a.q, kv.layer(0), scale, s);
    ops::output_gate(cx, *gate_, a.att, a.q_gate);
    tap(cx, 0, {{"draft_att", &a.att}});
    ops::out_proj(cx, *out_, a.d, a.att, s);
    c.experts > 0 ? run_experts(cx, s) : run_mlp(cx, s);
    ops::norm_unembed(cx, *unembed_, a.logits, a.h, a.x, a.d, s);
    tap(cx, -1, {{"draft_logits", &a.logits}});
    return a.logits;
  }
  void run_experts(ops::Ctx& cx, const Step& s) {
    Routing routing = a.routing.of(s.num_tokens);
    ops::norm_route(cx, *moe_.route, a.x, a.h, routing, a.y, a.d);
    if (!shared_is_last) {  // else chosen by every token
      ops::shared_up(cx, *moe_.shared_up, a.shared_u, a.h);
      ops::out_proj(cx, *moe_.shared_down, a.d, a.shared_u, s);
    }
    ops::moe_up(cx, *moe_.up, a.u, a.h, routing);
    ops::moe_down(cx, *moe_.down, a.d, a.u, routing);
  }
  void run_mlp(ops::Ctx& cx, const Step& s) {
    ops::mlp_up(cx, *up_, {a.u, a.h, a.x}, a.y, a.d);
    ops::out_proj(cx, *down_, a.d, a.u, s);
  }

  const MtpConfig c;
  const bool shared_is_last;  // of the experts
  Acts a;
  DraftInput input_;
  const bool has_some_ids_;
  std::vector<int32_t> ids_;  // that it drafts
  std::string own_head_;      // a matrix of its own, whose rows of ids_ it has
  const std::vector<int32_t> layers_ = {c.target_layers};
  Norm token_norm_, hidden_norm_;
  Site *embed_ = nullptr, *unembed_ = nullptr;
  const Site *fc_ = nullptr, *qkv_ = nullptr, *attention_ = nullptr, *gate_ = nullptr,
             *out_ = nullptr, *up_ = nullptr, *down_ = nullptr;  // the last two, of an MLP
  ExpertSites moe_;
};

}  // namespace

std::unique_ptr<MtpModel> make_mtp(const Config& config, const DenseFormats& dense,
                                   const std::vector<int32_t>& ids) {
  return std::make_unique<Mtp>(parse_mtp_config(config), dense, Quantization(config), ids);
}

}  // namespace nibble
