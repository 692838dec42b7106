#include "models/gpt_oss.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "models/gpt_oss_config.h"
#include "ops/attention/attention.h"
#include "ops/cpu_matmul/product.h"
#include "ops/embed/embed.h"
#include "ops/gpu_matmul/fold.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_route/norm_route.h"
#include "ops/norm_unembed/norm_unembed.h"
#include "ops/out_proj/out_proj.h"
#include "ops/sample/sample.h"
#include "tensor/buffer.h"

namespace nibble {
namespace {

using ops::Ctx;
using ops::Op;

struct Layer {
  Norm attn_norm;
  Weight qkv;  // rows of q, k, v
  const uint16_t* sinks;
  Weight out;
  Norm moe_norm;
  Weight router, up, down;
};

struct Weights {
  Weight embed;
  std::vector<Layer> layers;
  Norm final_norm;
  Weight unembed;
};

// Every buffer of a step. h, q, att and u are bf16 on GPUs, float32 on CPUs; indices int32; the
// rest float32.
struct Acts {
  Tensor x;                             // [T, H] residual stream, up to a layer's attention
  Tensor y;                             // [T, H] the same up to its experts
  Tensor d;                             // [T, H] what is still to be added to x
  Tensor h;                             // [T, H] normed
  Tensor cos_sin;                       // [T, D] angles of this step's positions
  Tensor q, att;                        // [T, Q * D]
  Tensor ids, p;                        // [T, K] experts chosen, and their weights
  Tensor slot, token, counts, offsets;  // [T, K], [T * K], [E], [E + 1]: see ops/routing.h
  Tensor u;                             // [T * K, F] expert activations, in expert order
  Tensor logits;                        // [R, V]
  Tensor counters;                      // zeros between ops; GPUs only
  Tensor scratch;                       // working memory within one op

  struct Sizes {
    int64_t tokens, out, scratch_bytes;  // T, R
    bool on_gpu;
  };
  // Calls visit(tensor, dtype, shape) for each of them.
  template <typename Visit>
  void each(const GptOssConfig& c, const Sizes& sizes, Visit visit) {
    const int64_t tokens = sizes.tokens;
    const DType act = sizes.on_gpu ? DType::kBF16 : DType::kF32;
    for (Tensor* t : {&x, &y, &d}) visit(*t, DType::kF32, {tokens, c.hidden});
    visit(h, act, {tokens, c.hidden});
    visit(cos_sin, DType::kF32, {tokens, c.head_dim});
    for (Tensor* t : {&q, &att}) visit(*t, act, {tokens, c.q_width()});
    visit(ids, DType::kI32, {tokens, c.top_k});
    visit(p, DType::kF32, {tokens, c.top_k});
    for (Tensor* t : {&slot, &token}) visit(*t, DType::kI32, {tokens * c.top_k});
    visit(counts, DType::kI32, {c.experts});
    visit(offsets, DType::kI32, {c.experts + 1});
    visit(u, act, {tokens * c.top_k, c.width});
    visit(logits, DType::kF32, {sizes.out, c.vocab});
    visit(counters, DType::kI32, {sizes.on_gpu ? Ctx::kNumCounters : 0});
    visit(scratch, DType::kU8, {sizes.scratch_bytes});
  }
};

using Shape = std::initializer_list<int64_t>;

Weights bind(const GptOssConfig& c, const LoadedWeights& w) {
  const auto norm = [&](const std::string& name) { return Norm{w.vector(name), c.norm_eps}; };
  Weights all;
  all.embed = w.matrix("model.embed_tokens.weight");
  for (int64_t l = 0; l < c.layers; ++l) {
    const std::string attn = layer_name(l, "self_attn."), mlp = layer_name(l, "mlp.");
    const std::string up = mlp + "experts.gate_up_proj", down = mlp + "experts.down_proj";
    all.layers.push_back({.attn_norm = norm(layer_name(l, "input_layernorm.weight")),
                          .qkv = w.matrix(attn + "q_proj.weight", attn + "q_proj.bias",
                                          c.q_width() + 2 * c.kv_width()),
                          .sinks = w.vector(attn + "sinks"),
                          .out = w.matrix(attn + "o_proj.weight", attn + "o_proj.bias"),
                          .moe_norm = norm(layer_name(l, "post_attention_layernorm.weight")),
                          .router = w.matrix(mlp + "router.weight", mlp + "router.bias"),
                          .up = w.matrix(up, up + "_bias"),
                          .down = w.matrix(down, down + "_bias")});
  }
  all.final_norm = norm("model.norm.weight");
  all.unembed = w.matrix("lm_head.weight");
  return all;
}

// The problems that the kernels are chosen for.
struct Descs {
  Descs(const GptOssConfig& c, const DenseFormats& dense)
      : embed{c.vocab, c.hidden, Format::kBF16},
        norm_qkv{c.hidden, c.q_heads, c.kv_heads, c.head_dim, dense.qkv},
        attention{c.q_heads, c.kv_heads, c.head_dim, kNoWindow},
        out_proj{c.hidden, c.q_width(), dense.out},
        norm_route{c.hidden, c.experts, c.top_k, Format::kBF16},
        moe_up{c.hidden, c.width, c.experts, c.top_k, Format::kMxfp4},
        moe_down{c.hidden, c.width, c.experts, c.top_k, Format::kMxfp4},
        norm_unembed{c.hidden, c.vocab, dense.unembed} {}

  ops::EmbedDesc embed;
  ops::NormQkvDesc norm_qkv;
  ops::AttentionDesc attention;  // but for the window
  ops::OutProjDesc out_proj;
  ops::NormRouteDesc norm_route;
  ops::MoeUpDesc moe_up;
  ops::MoeDownDesc moe_down;
  ops::NormUnembedDesc norm_unembed;
};

ops::KernelPlan make_plan(const GptOssConfig& c, const DenseFormats& dense,
                          const ops::KernelOptions& options) {
  const Descs d(c, dense);
  ops::KernelPlan plan(static_cast<int>(c.layers));
  plan.add(Op::kEmbed, -1, ops::embed_kernels(), d.embed, options);
  for (int l = 0; l < c.layers; ++l) {
    ops::AttentionDesc attention = d.attention;
    attention.window = c.window_of(l);
    plan.add(Op::kNormQkv, l, ops::norm_qkv_kernels(), d.norm_qkv, options);
    plan.add(Op::kAttention, l, ops::attention_kernels(), attention, options);
    plan.add(Op::kOutProj, l, ops::out_proj_kernels(), d.out_proj, options);
    plan.add(Op::kNormRoute, l, ops::norm_route_kernels(), d.norm_route, options);
    plan.add(Op::kMoeUp, l, ops::moe_up_kernels(), d.moe_up, options);
    plan.add(Op::kMoeDown, l, ops::moe_down_kernels(), d.moe_down, options);
  }
  plan.add(Op::kNormUnembed, -1, ops::norm_unembed_kernels(), d.norm_unembed, options);
  return plan;
}

// Working memory of the op that needs most.
int64_t op_scratch_bytes(const GptOssConfig& c, const DenseFormats& dense, const Ctx& cx,
                         const StepLimits& limits) {
  Descs d(c, dense);
  const int64_t tokens = limits.max_tokens;
  if (cx.on_gpu()) {
    d.norm_qkv.tokens = d.attention.tokens = d.norm_route.tokens = d.moe_down.tokens = tokens;
    d.out_proj.tokens = d.moe_up.tokens = tokens;
    d.norm_unembed.tokens = limits.max_out;
    return std::max({ops::gpu::scratch_bytes(d.norm_qkv), ops::gpu::scratch_bytes(d.attention),
                     ops::gpu::scratch_bytes(d.out_proj), ops::gpu::scratch_bytes(d.norm_route),
                     ops::gpu::scratch_bytes(d.moe_up), ops::gpu::scratch_bytes(d.moe_down),
                     ops::gpu::scratch_bytes(d.norm_unembed),
                     ops::gpu::sample_scratch_bytes(limits.max_out)});
  }
  const int threads = cx.threads();
  return std::max({ops::scratch_bytes(d.norm_qkv, tokens, threads),
                   ops::scratch_bytes(d.attention, threads),
                   ops::scratch_bytes(d.out_proj, tokens, threads),
                   ops::scratch_bytes(d.norm_route, tokens, threads),
                   ops::scratch_bytes(d.moe_up, tokens, threads),
                   ops::scratch_bytes(d.moe_down, tokens, threads),
                   ops::scratch_bytes(d.norm_unembed, limits.max_out, threads)});
}

Acts::Sizes sizes_of(const GptOssConfig& c, const DenseFormats& dense, const Ctx& cx,
                     const StepLimits& limits) {
  return {limits.max_tokens, limits.max_out, op_scratch_bytes(c, dense, cx, limits), cx.on_gpu()};
}

// Weight::fold of all weights, if all are in MXFP4.
int64_t fold_bytes(const GptOssConfig& c) {
  const int64_t layer =
      2 * c.hidden + c.q_width() + 2 * c.kv_width() + c.experts * (2 * c.width + c.hidden);
  return c.layers * layer + c.vocab;
}
bool folds(const Ctx& cx) { return cx.on_gpu() && cx.kernels.activations == ops::ActFormat::kFp8; }

int64_t acts_bytes(const GptOssConfig& c, const DenseFormats& dense, const Ctx& cx,
                   const StepLimits& limits) {
  int64_t sum = folds(cx) ? fold_bytes(c) : 0;
  Acts().each(c, sizes_of(c, dense, cx, limits), [&](Tensor&, DType dtype, Shape shape) {
    sum += Arena::padded(make_tensor(nullptr, dtype, shape).size_bytes());
  });
  return sum;
}

class GptOss : public Model {
 public:
  GptOss(GptOssConfig config, const DenseFormats& dense_formats, ops::KernelPlan plan,
         LoadedWeights weights)
      : c(std::move(config)),
        dense(dense_formats),
        info_(gpt_oss_info(c, dense)),
        plan_(std::move(plan)),
        loaded_(std::move(weights)),
        w(bind(c, loaded_)) {}

  const ModelInfo& info() const override { return info_; }

  int64_t scratch_bytes(const Ctx& cx, const StepLimits& limits) const override {
    return acts_bytes(c, dense, cx, limits);
  }

  void reserve(const Ctx& cx, const StepLimits& limits) override {
    arena_ = Arena(cx.allocate(scratch_bytes(cx, limits) - (folds(cx) ? fold_bytes(c) : 0)));
    acts_.each(c, sizes_of(c, dense, cx, limits),
               [&](Tensor& t, DType dtype, Shape shape) { t = arena_.take(dtype, shape); });
    limits_ = limits;
    if (cx.kernels.gpu.sm == 90) find_folds(cx);
  }

  Tensor forward(Ctx& cx, const Step& step, const SeqState& kv) override {
    CHECK(step.num_tokens <= limits_.max_tokens && step.num_out <= limits_.max_out);
    cx.plan = &plan_;
    cx.scratch = {static_cast<std::byte*>(acts_.scratch.data),
                  static_cast<size_t>(acts_.scratch.size_bytes())};
    cx.counters = static_cast<uint32_t*>(acts_.counters.data);
    Acts a = acts_;
    a.each(c, {step.num_tokens, step.num_out, acts_.scratch.size_bytes(), cx.on_gpu()},
           [](Tensor& t, DType dtype, Shape shape) { t = make_tensor(t.data, dtype, shape); });
    run(cx, step, kv, a);
    return a.logits;
  }

 private:
  // x += Attn(norm(x)); x += Moe(norm(x)) for each layer, then logits = unembed(norm(x[out_rows])).
  void run(Ctx& cx, const Step& s, const SeqState& kv, const Acts& a) const {
    cx.layer = -1;
    Routing routing = routing_of(a, s.num_tokens);
    if (cx.runs(Op::kEmbed)) ops::embed(cx, {a.x, a.d, a.cos_sin}, w.embed, c.rope, s);
    for (int l = 0; l < c.layers; ++l) {
      const Layer& lw = w.layers[l];
      cx.layer = l;
      // Window layers see the last few positions, full layers all. A learned sink logit per head
      // joins the softmax's denominator and attends to nothing.
      const ops::AttentionParams attn{.scale = 1 / std::sqrt(static_cast<float>(c.head_dim)),
                                      .window = c.window_of(l),
                                      .sinks = lw.sinks};
      if (cx.runs(Op::kNormQkv))
        ops::norm_qkv(cx, {a.q, a.h, a.y}, kv.layer(l), a.x, a.d, lw.attn_norm, lw.qkv, a.cos_sin,
                      s);
      tap(cx, {{"x", &a.y}, {"attn_h", &a.h}, {"q", &a.q}});
      if (cx.runs(Op::kAttention)) ops::attention(cx, a.att, a.q, kv.layer(l), attn, s);
      tap(cx, {{"att", &a.att}});
      if (cx.runs(Op::kOutProj)) ops::out_proj(cx, a.d, a.att, lw.out, s);
      tap(cx, {{"attn_d", &a.d}});
      if (cx.runs(Op::kNormRoute))
        ops::norm_route(cx, a.x, a.h, routing, a.y, a.d, lw.moe_norm, lw.router);
      tap(cx, {{"moe_h", &a.h}, {"ids", &a.ids}, {"p", &a.p}});
      if (cx.runs(Op::kMoeUp)) ops::moe_up(cx, a.u, a.h, routing, lw.up, c.swiglu_limit);
      tap(cx, {{"u", &a.u}});
      if (cx.runs(Op::kMoeDown)) ops::moe_down(cx, a.d, a.u, routing, lw.down);
      tap(cx, {{"moe_d", &a.d}});
    }
    cx.layer = -1;
    if (cx.runs(Op::kNormUnembed))
      ops::norm_unembed(cx, a.logits, a.h, a.x, a.d, w.final_norm, w.unembed, s);
    tap(cx, {{"logits", &a.logits}});
  }

  // What kernels that multiply in FP8 ask of weights: whether the experts' exceed E5M2 and, with
  // E4M3 activations, Weight::fold of those that fold; says which do not. moe_up hands E4M3 to
  // moe_down: both of a layer or neither.
  void find_folds(const Ctx& cx) {
    constexpr ops::FindFoldFn* kFind = NIBBLE_CUDA_KERNEL(ops::gpu::find_fold);
    CHECK(kFind != nullptr);
    int64_t weights = 0, unfit = 0, too_large = 0;
    for (Layer& layer : w.layers)
      for (Weight* experts : {&layer.up, &layer.down}) {
        if (experts->layout != Layout::kTiles16x64) continue;
        // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): builds for CPUs end above
        experts->exceeds_e5m2 = kFind(cx, *experts, nullptr).too_large > 0;
        too_large += experts->exceeds_e5m2;
      }
    if (too_large > 0)
      LOG_WARN(
          "%lld of %lld weights of experts have block scales above 2: batches run by "
          "cuda_w4a16_batch, which is slower, where the kernel table says sm90_w4a16_fold",
          static_cast<long long>(too_large), static_cast<long long>(2 * c.layers));
    if (!folds(cx)) return;
    fold_ = cx.allocate(fold_bytes(c));
    auto* at = static_cast<uint8_t*>(fold_.data());
    const auto fold_all = [&](std::initializer_list<Weight*> together) {
      int64_t misfits = 0;
      for (Weight* w : together) {
        if (w->layout != Layout::kTiles16x64) return;  // bf16
        misfits += kFind(cx, *w, at).rows;
        w->fold = std::exchange(at, at + w->experts * w->rows);
        ++weights;
      }
      if (misfits == 0) return;
      for (Weight* w : together) w->fold = nullptr, ++unfit;
    };
    for (Layer& layer : w.layers) {
      fold_all({&layer.qkv});
      fold_all({&layer.out});
      fold_all({&layer.up, &layer.down});
    }
    fold_all({&w.unembed});
    LOG_INFO(
        "activations in E4M3: %lld of %lld MXFP4 weights have rows whose exponents are more "
        "than %d apart and multiply bf16 activations",
        static_cast<long long>(unfit), static_cast<long long>(weights), ops::kFoldSpan);
  }

  static void tap(const Ctx& cx, std::initializer_list<std::pair<const char*, const Tensor*>> all) {
    if (!cx.tap) return;
    for (const auto& [name, tensor] : all) {
      if (!cx.tap_only.empty() && cx.tap_only != name) continue;  // a copy from a GPU is slow
      Buffer memory;
      cx.tap(name, cx.layer, cx.on_host(*tensor, memory));
    }
  }

  Routing routing_of(const Acts& a, int32_t tokens) const {
    return {.num_tokens = tokens,
            .num_experts = static_cast<int32_t>(c.experts),
            .top_k = static_cast<int32_t>(c.top_k),
            .ids = a.ids.as<int32_t>(),
            .p = a.p.as<float>(),
            .counts = a.counts.as<int32_t>(),
            .offsets = a.offsets.as<int32_t>(),
            .slot = a.slot.as<int32_t>(),
            .token = a.token.as<int32_t>()};
  }

  const GptOssConfig c;
  const DenseFormats dense;
  const ModelInfo info_;
  const ops::KernelPlan plan_;
  const LoadedWeights loaded_;
  Weights w;
  Buffer fold_;  // Weight::fold of all
  StepLimits limits_;
  Arena arena_;
  Acts acts_;
};

// With one step per token: how much of the weights takes more than one pass in whole numbers.
void say_wide_panels(const Weights& all) {
  int64_t wide = 0, panels = 0;
  const auto count = [&](const Weight& w) {
    if (w.format != Format::kMxfp4 || w.layout != Layout::kPanels16) return;
    wide += ops::count_wide_panels(w);
    panels += w.experts * w.rows / kGroupRows;
  };
  for (const Layer& layer : all.layers)
    for (const Weight* w : {&layer.qkv, &layer.out, &layer.up, &layer.down}) count(*w);
  count(all.unembed);
  LOG_INFO(
      "int8-row: %lld of %lld panels of 16 rows have exponents too far apart for whole numbers in "
      "one pass and take more",
      static_cast<long long>(wide), static_cast<long long>(panels));
}

// transformers saves dequantized experts as bf16 [E, H, 2F], transposed and without blocks.
void refuse_dense_experts(const Checkpoint& checkpoint) {
  const std::string name = layer_name(0, "mlp.experts.gate_up_proj");
  if (checkpoint.find(name) == nullptr) return;
  throw Error(ErrorKind::kUnsupported,
              checkpoint.origin() + ": " + name +
                  " is not quantized; nibble reads gpt-oss experts as MXFP4 only (" + name +
                  "_blocks and _scales, as openai/gpt-oss-20b has them)");
}

}  // namespace

ModelInfo describe_gpt_oss(const ModelFiles& files, const DenseFormats& dense) {
  return gpt_oss_info(parse_gpt_oss_config(files.config), dense);
}

int64_t describe_gpt_oss_scratch(const Ctx& cx, const ModelFiles& files, const StepLimits& limits,
                                 const DenseFormats& dense) {
  return acts_bytes(parse_gpt_oss_config(files.config), dense, cx, limits);
}

std::vector<WeightSpec> list_gpt_oss_weights(const ModelFiles& files) {
  std::vector<WeightSpec> specs;
  const auto rows = [](ops::Op, int) { return Layout::kRows; };
  for (const WantedWeight& w : gpt_oss_weights(parse_gpt_oss_config(files.config), {}, rows))
    specs.push_back(w.spec);
  return specs;
}

ops::KernelPlan plan_gpt_oss(const Ctx& cx, const ModelFiles& files, const DenseFormats& dense) {
  return make_plan(parse_gpt_oss_config(files.config), dense, cx.kernels);
}

std::vector<OpWork> describe_gpt_oss_step_work(const ModelFiles& files, const DenseFormats& dense,
                                               const StepShape& shape) {
  const GptOssConfig c = parse_gpt_oss_config(files.config);
  const Descs d(c, dense);
  const int64_t tokens = shape.streams * shape.tokens, act = shape.act_bytes;
  const double missed = 1 - static_cast<double>(c.top_k) / static_cast<double>(c.experts);
  const auto distinct = std::llround(static_cast<double>(c.experts) *
                                     (1 - std::pow(missed, static_cast<double>(tokens))));
  std::vector<OpWork> all;
  const auto add = [&](Op op, int64_t times, int64_t bytes, int64_t flops, Format weights) {
    all.push_back({ops::op_name(op), times * bytes, times * flops, weights});
  };
  add(Op::kEmbed, 1, bytes(d.embed, tokens), 0, d.embed.format);
  add(Op::kNormQkv, c.layers, bytes(d.norm_qkv, tokens, act), flops(d.norm_qkv, tokens), dense.qkv);
  OpWork attention{.op = ops::op_name(Op::kAttention)};
  for (int l = 0; l < c.layers; ++l) {
    ops::AttentionDesc desc = d.attention;
    desc.window = c.window_of(l);
    attention.bytes +=
        shape.streams * bytes(desc, shape.tokens, shape.context, shape.kv_bytes, act);
    attention.flops += shape.streams * flops(desc, shape.tokens, shape.context);
  }
  all.push_back(std::move(attention));
  add(Op::kOutProj, c.layers, bytes(d.out_proj, tokens, act), flops(d.out_proj, tokens), dense.out);
  add(Op::kNormRoute, c.layers, bytes(d.norm_route, tokens, act), flops(d.norm_route, tokens),
      d.norm_route.format);
  add(Op::kMoeUp, c.layers, bytes(d.moe_up, tokens, distinct, act), flops(d.moe_up, tokens),
      d.moe_up.format);
  add(Op::kMoeDown, c.layers, bytes(d.moe_down, tokens, distinct, act), flops(d.moe_down, tokens),
      d.moe_down.format);
  if (shape.logits)
    add(Op::kNormUnembed, 1, bytes(d.norm_unembed, shape.streams, act),
        flops(d.norm_unembed, shape.streams), dense.unembed);
  return all;
}

std::unique_ptr<Model> load_gpt_oss(const Ctx& cx, const ModelFiles& files,
                                    const LoadOptions& options) {
  GptOssConfig c = parse_gpt_oss_config(files.config);
  ops::KernelPlan plan = make_plan(c, options.dense, cx.kernels);
  std::vector<WantedWeight> wanted = gpt_oss_weights(
      c, options.dense, [&](ops::Op op, int layer) { return plan.layout(op, layer); });
  const auto is_mxfp8 = [](const WantedWeight& w) { return w.format == Format::kMxfp8; };
  if (options.format == LoadFormat::kDummy && options.memory.random &&
      std::ranges::none_of(wanted, is_mxfp8)) {
    LoadedWeights weights(wanted, options.memory, options.seed);
    return std::make_unique<GptOss>(std::move(c), options.dense, std::move(plan),
                                    std::move(weights));
  }
  std::unique_ptr<Checkpoint> checkpoint;
  if (options.format == LoadFormat::kDummy) {
    std::vector<WeightSpec> specs;
    for (WantedWeight& w : wanted) {
      if (w.format == Format::kMxfp4) w.spec.format = w.format;  // made as it is wanted
      specs.push_back(w.spec);
    }
    checkpoint = dummy_checkpoint(specs, options.seed);
  } else {
    checkpoint = open_checkpoint(files.require_weights());
    refuse_dense_experts(*checkpoint);
  }
  LoadedWeights weights(*checkpoint, wanted, options.memory, cx.threads(), options.progress);
  if (cx.kernels.activations == ops::ActFormat::kInt8Row) say_wide_panels(bind(c, weights));
  return std::make_unique<GptOss>(std::move(c), options.dense, std::move(plan), std::move(weights));
}

}  // namespace nibble
