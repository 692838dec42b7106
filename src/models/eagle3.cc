#include "models/eagle3.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "ops/draft_head/draft_head.h"

namespace nibble {
namespace {

using ops::Site;

// Every buffer of a step. H is the head's width, Ht the target's.
struct Acts {
  Tensor e;        // [T, H] embedded tokens
  Tensor none;     // [T, H] zeros: nothing is pending behind an embedding
  Tensor cos_sin;  // [T, D] angles of this step's positions
  Tensor rows;     // [T, 3 Ht] the target's rows side by side
  Tensor g;        // [T, H] what fc makes of them
  Tensor both;     // [T, 2 H] token and rows, each normed
  Tensor y;        // [T, H] residual stream, up to the MLP
  Tensor qkv;      // [T, (Q + 2 G) * D]
  Tensor q, att;   // [T, Q * D]
  Tensor h;        // [T, H] normed
  Tensor u;        // [T, F]
  Tensor x, d;     // [T, H] residual stream, and what is still to be added to it
  Tensor logits;   // [R, V]
};

// "midlayer." of "midlayer.self_attn.q_proj.weight", whatever its format adds behind q_proj.
std::string prefix_of_layer(const Checkpoint* checkpoint) {
  constexpr std::string_view kFirst = "self_attn.q_proj.";
  if (checkpoint == nullptr) return "midlayer.";
  for (const TensorInfo& t : checkpoint->tensors())
    if (const size_t at = t.name.find(kFirst); at != std::string::npos) return t.name.substr(0, at);
  throw Error(ErrorKind::kCheckpoint,
              checkpoint->origin() + ": has no self_attn.q_proj; it is no Eagle3 head");
}

class Eagle3 : public Eagle3Model {
 public:
  Eagle3(Eagle3Config config, const DenseFormats& dense, Quantization quantization,
         const Checkpoint* checkpoint)
      : Eagle3Model(dense, std::move(quantization)), c(std::move(config)) {
    const auto has = [&](const char* name) {
      return checkpoint != nullptr && checkpoint->find(name) != nullptr;
    };
    const auto num_rows = static_cast<int64_t>(c.target_layers.size());
    state_buffers(num_rows);
    embed_ = &add(-1, ops::EmbedDesc{c.target_vocab, c.hidden}, {}, {"e", "none", "cos_sin"});
    embed_->weight = {.rows = c.target_vocab, .cols = c.hidden};
    if (has("embed_tokens.weight"))
      matrix(*embed_, "embed", {{"embed_tokens", c.target_vocab}}, c.hidden, Fill::kNormal);
    Site& fc = add(-1, ops::OutProjDesc{c.hidden, num_rows * c.target_hidden, dense_.out}, {"rows"},
                   {"g"}, "fc");
    if (c.norm_before_fc)
      head_norm(fc, rows_norm_, "input_norm", num_rows * c.target_hidden, c.norm_eps);
    for (int64_t i = 0; i < num_rows; ++i)
      if (const std::string name = "fc_norm." + std::to_string(i); has((name + ".weight").c_str()))
        head_norm(fc, row_norms_[i], name, c.target_hidden, c.norm_eps);
    matrix(fc, "fc", {{"fc", c.hidden}}, num_rows * c.target_hidden);
    fc_ = &fc;
    state_layer(prefix_of_layer(checkpoint));
    Site& unembed = add(-1, ops::NormUnembedDesc{c.hidden, c.vocab, dense_.unembed}, {"x", "d"},
                        {"logits", "h"});
    norm(unembed, "norm", c.hidden, c.norm_eps);
    matrix(unembed, "unembed", {{"lm_head", c.vocab}}, c.hidden);
    unembed_ = &unembed;
    describe({.architecture = "Eagle3",
              .num_layers = 1,
              .vocab_size = static_cast<int32_t>(c.vocab),
              .max_positions = 1 << 30,
              .groups = {{.layers = {0},
                          .num_kv_heads = static_cast<int32_t>(c.kv_heads),
                          .head_dim = static_cast<int32_t>(c.head_dim)}}});
  }

  Model& model() override { return *this; }
  const std::vector<int32_t>& target_layers() const override { return c.target_layers; }
  const std::vector<int32_t>& target_ids() const override { return ids_; }
  void set_input(DraftInput input) override { input_ = std::move(input); }

  void share_embedding(const Weight& embedding) override {
    if (embed_->weight.codes != nullptr || has_embedding()) return;
    CHECK(embedding.rows == c.target_vocab && embedding.cols == c.hidden);
    embed_->weight = embedding;
    std::get<ops::EmbedDesc>(embed_->problem).format = embedding.format;
  }

  void read_ids(const Checkpoint* checkpoint) override {
    ids_.resize(c.vocab);
    std::iota(ids_.begin(), ids_.end(), 0);
    const TensorInfo* offsets = checkpoint == nullptr ? nullptr : checkpoint->find("d2t");
    if (offsets == nullptr && c.vocab == c.target_vocab) return;
    if (checkpoint == nullptr) return;  // random weights: the first ids
    const auto fail = [&](const std::string& what) {
      throw Error(ErrorKind::kCheckpoint, checkpoint->origin() + ": d2t " + what);
    };
    if (offsets == nullptr) fail("is missing, for a vocabulary of " + std::to_string(c.vocab));
    if (offsets->dtype != DType::kI64 || offsets->shape != std::vector<int64_t>{c.vocab})
      fail("must be I64 [" + std::to_string(c.vocab) + "]");
    std::vector<int64_t> values(c.vocab);
    const ReadJob job = ReadJob::whole(*offsets, values.data());
    checkpoint->read({&job, 1});
    for (int64_t i = 0; i < c.vocab; ++i) {
      if (values[i] < -i || values[i] >= c.target_vocab - i)
        fail("leads from id " + std::to_string(i) + " out of the model's vocabulary of " +
             std::to_string(c.target_vocab));
      ids_[i] = static_cast<int32_t>(i + values[i]);
    }
  }

 private:
  bool has_embedding() const {
    return std::ranges::any_of(info().parts, [](const auto& part) { return part.name == "embed"; });
  }

  void state_buffers(int64_t num_rows) {
    f32(a.e, "e", c.hidden), f32(a.none, "none", c.hidden);
    f32(a.cos_sin, "cos_sin", c.head_dim);
    stored(a.rows, "rows", num_rows * c.target_hidden), f32(a.g, "g", c.hidden);
    stored(a.both, "both", 2 * c.hidden), f32(a.y, "y", c.hidden);
    f32(a.qkv, "qkv", c.q_width() + 2 * c.kv_width());
    stored(a.q, "q", c.q_width()), stored(a.att, "att", c.q_width());
    stored(a.h, "h", c.hidden), stored(a.u, "u", c.width);
    f32(a.x, "x", c.hidden), f32(a.d, "d", c.hidden);
    f32_of_logits(a.logits, "logits", c.vocab);
  }

  void state_layer(const std::string& layer) {
    const std::string attn = layer + "self_attn.", mlp = layer + "mlp.";
    const ops::OutProjDesc products{c.q_width() + 2 * c.kv_width(), 2 * c.hidden, dense_.qkv};
    Site& qkv = add(0, products, {"both"}, {"qkv"}, "qkv");
    head_norm(qkv, token_norm_, layer + "input_layernorm", c.hidden, c.norm_eps);
    head_norm(qkv, hidden_norm_, layer + "hidden_norm", c.hidden, c.norm_eps);
    matrix(qkv, "attention",
           {{attn + "q_proj", c.q_width()},
            {attn + "k_proj", c.kv_width()},
            {attn + "v_proj", c.kv_width()}},
           2 * c.hidden, Fill::kScaledNormal, c.has_bias);
    attention_ =
        &add(0, ops::AttentionDesc{c.q_heads, c.kv_heads, c.head_dim}, {"q", "kv"}, {"att"});
    Site& out = add(0, ops::OutProjDesc{c.hidden, c.q_width(), dense_.out}, {"att"}, {"d"});
    matrix(out, "attention", {{attn + "o_proj", c.hidden}}, c.q_width(), Fill::kResidual,
           c.has_bias);
    Site& up = add(0, ops::MlpUpDesc{c.hidden, c.width, dense_.mlp}, {"y", "d"}, {"u", "h", "x"});
    norm(up, layer + "post_attention_layernorm", c.hidden, c.norm_eps);
    gate_up(up, "mlp", {mlp + "gate_proj", c.width}, {mlp + "up_proj", c.width}, c.hidden);
    Site& down = add(0, ops::OutProjDesc{c.hidden, c.width, dense_.mlp}, {"u"}, {"d"}, "down");
    matrix(down, "mlp", {{mlp + "down_proj", c.hidden}}, c.width, Fill::kResidual);
    qkv_ = &qkv, out_ = &out, up_ = &up, down_ = &down;
  }

  // What the next draft is made from: fc of the target's rows, or the sum that the step before
  // left.
  ops::RowPart hidden(ops::Ctx& cx, const Step& s) {
    if (input_.target.empty())
      return {.x = a.x,
              .d = a.d,
              .rows = input_.rows,
              .first = c.norm_output ? unembed_->norm : Norm{},
              .norm = hidden_norm_};
    const size_t n = c.target_layers.size();
    std::array<ops::RowPart, ops::kMostParts> parts;
    for (size_t i = 0; i < n; ++i)
      parts[i] = {.x = input_.target[i], .rows = input_.rows, .norm = row_norms_[i]};
    ops::join_rows(cx, {a.rows}, std::span(parts).first(n), rows_norm_);
    tap(cx, -1, {{"draft_rows", &a.rows}});
    ops::out_proj(cx, *fc_, a.g, a.rows, s);
    return {.x = a.g, .norm = hidden_norm_};
  }

  // y = hidden; y += Attn([norm(token); norm(hidden)]); y += Mlp(norm(y)); logits =
  // unembed(norm(y)).
  Tensor run(ops::Ctx& cx, const Step& s, const SeqState& kv) override {
    const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
    ops::embed(cx, *embed_, {a.e, a.none, a.cos_sin}, c.rope, s);
    const std::array<ops::RowPart, 2> parts{{{.x = a.e, .norm = token_norm_}, hidden(cx, s)}};
    ops::join_rows(cx, {a.both, a.y, c.norm_before_residual}, parts, {});
    tap(cx, 0, {{"draft_both", &a.both}, {"draft_y", &a.y}});
    ops::out_proj(cx, *qkv_, a.qkv, a.both, s);
    ops::store_heads(cx, a.q, pages_of(*attention_, kv.layer(0)), a.qkv, a.cos_sin, s);
    if (s.num_out == 0) return a.logits;  // fed for its keys and values
    ops::attention(cx, *attention_, a.att, a.q, kv.layer(0), scale, s);
    tap(cx, 0, {{"draft_att", &a.att}});
    ops::out_proj(cx, *out_, a.d, a.att, s);
    ops::mlp_up(cx, *up_, {a.u, a.h, a.x}, a.y, a.d);
    ops::out_proj(cx, *down_, a.d, a.u, s);
    ops::norm_unembed(cx, *unembed_, a.logits, a.h, a.x, a.d, s);
    tap(cx, -1, {{"draft_logits", &a.logits}});
    return a.logits;
  }

  const Eagle3Config c;
  Acts a;
  DraftInput input_;
  std::vector<int32_t> ids_;
  std::array<Norm, ops::kMostParts> row_norms_ = {};
  Norm rows_norm_, token_norm_, hidden_norm_;
  Site* embed_ = nullptr;
  const Site *fc_ = nullptr, *qkv_ = nullptr, *attention_ = nullptr, *out_ = nullptr;
  const Site *up_ = nullptr, *down_ = nullptr, *unembed_ = nullptr;
};

}  // namespace

std::unique_ptr<Eagle3Model> make_eagle3(Eagle3Config config, const DenseFormats& dense,
                                         Quantization quantization, const Checkpoint* checkpoint) {
  return std::make_unique<Eagle3>(std::move(config), dense, std::move(quantization), checkpoint);
}

}  // namespace nibble
