#include "models/site_model.h"

#include <algorithm>

#include "base/error.h"
#include "ops/prepare.h"
#include "ops/sample/sample.h"

namespace nibble {

using ops::Ctx;
using ops::Op;
using ops::Site;

std::string layer_name(int64_t layer, const std::string& rest) {
  return "model.layers." + std::to_string(layer) + "." + rest;
}

// ---- what constructors call ----

Site& SiteModel::add(int layer, const ops::Problem& problem, std::vector<std::string> reads,
                     std::vector<std::string> writes, const std::string& name) {
  const ops::SiteKey key{ops::op_of(problem), layer, name};
  for (const Site& other : sites_) CHECK(other.key != key);
  for (const auto* names : {&reads, &writes})
    for (const std::string& buffer : *names)
      CHECK(buffer == "kv" || buffer == "routing" ||
            std::ranges::any_of(acts_, [&](const Act& act) { return act.name == buffer; }));
  return sites_.emplace_back(
      Site{key, site_label(key), problem, std::move(reads), std::move(writes)});
}

SiteModel::Declared& SiteModel::declare(Site& site, const char* part, const std::string& name,
                                        std::vector<int64_t> shape, Fill fill) {
  declared_.push_back(
      {.want = {.spec = {name, std::move(shape), Format::kBF16, fill}, .part = part},
       .site = &site});
  return declared_.back();
}

// Throws Error(kUnsupported) where --dense-format asks for what the matrix cannot become.
void SiteModel::become(Declared& declared, Format format) {
  WantedWeight& w = declared.want;
  w.format = format;
  if (format == w.spec.format) return;
  if (const char* reason = refuse_encode(format, w.spec.shape.back()))
    throw Error(ErrorKind::kUnsupported, "--dense-format: " + w.spec.name + " cannot become " +
                                             std::string(format_name(format)) + ": " + reason);
}

void SiteModel::matrix(Site& site, const char* part, const std::vector<Rows>& tensors, int64_t cols,
                       Fill fill, bool has_bias) {
  const Format format = std::visit(
      [](const auto& desc) {
        if constexpr (requires { desc.format; }) return desc.format;
        return Format::kBF16;
      },
      site.problem);
  site.weight = {.format = format, .cols = cols};
  for (const Rows& t : tensors) {
    Declared& declared = declare(site, part, t.name + ".weight", {t.rows, cols}, fill);
    declared.want.joined = &t != &tensors[0];
    if (site.key.op == Op::kEmbed) declared.want.choices = static_cast<int32_t>(t.rows);
    become(declared, format);
    site.weight.rows += t.rows;
  }
  for (const Rows& t : tensors) {
    if (!has_bias) break;
    Declared& bias = declare(site, part, t.name + ".bias", {t.rows}, Fill::kZero);
    bias.want.joined = &t != &tensors[0];
    if (!bias.want.joined) bias.vector = &site.weight.bias;
  }
}

void SiteModel::experts(Site& site, const std::string& name, int64_t rows, int64_t cols,
                        Fill fill) {
  std::visit(
      [&](const auto& desc) {
        if constexpr (requires { desc.top_k; }) {
          site.weight = {
              .format = Format::kMxfp4, .experts = desc.experts, .rows = rows, .cols = cols};
          WantedWeight& w = declare(site, "experts", name, {desc.experts, rows, cols}, fill).want;
          w.spec.format = w.format = Format::kMxfp4;
          w.chosen = static_cast<int32_t>(desc.top_k);
          w.choices = static_cast<int32_t>(desc.experts);
          declare(site, "experts", name + "_bias", {desc.experts, rows}, Fill::kZero).vector =
              &site.weight.bias;
        }
      },
      site.problem);
}

void SiteModel::norm(Site& site, const std::string& name, int64_t hidden, float eps) {
  declare(site, "norms", name + ".weight", {hidden}, Fill::kOne).vector = &site.norm.weight;
  site.norm.eps = eps;
}

void SiteModel::sinks(Site& site, const std::string& name, int64_t heads) {
  declare(site, "attention", name, {heads}, Fill::kNormal).vector = &site.sinks;
}

void SiteModel::act(Tensor& t, const char* name, DType dtype, Count count, int64_t rows,
                    int64_t cols, bool is_stored) {
  acts_.push_back({&t, name, dtype, is_stored, count, rows, cols});
}

void SiteModel::f32(Tensor& t, const char* name, int64_t cols) {
  act(t, name, DType::kF32, Count::kTokens, 1, cols);
}

void SiteModel::stored(Tensor& t, const char* name, int64_t cols, int64_t rows_a_token) {
  act(t, name, DType::kF32, Count::kTokens, rows_a_token, cols, /*is_stored=*/true);
}

void SiteModel::f32_of_logits(Tensor& t, const char* name, int64_t vocab) {
  act(t, name, DType::kF32, Count::kOut, 1, vocab);
}

void SiteModel::routing(RoutingBuffers& r, int64_t experts, int64_t top_k) {
  act(r.ids, "ids", DType::kI32, Count::kTokens, 1, top_k);
  act(r.p, "p", DType::kF32, Count::kTokens, 1, top_k);
  act(r.slot, "slot", DType::kI32, Count::kTokens, 1, top_k);
  act(r.token, "token", DType::kI32, Count::kTokens, top_k, 1);
  act(r.counts, "counts", DType::kI32, Count::kOne, 1, experts);
  act(r.offsets, "offsets", DType::kI32, Count::kOne, 1, experts + 1);
  act(r.logits, "router_logits", DType::kF32, Count::kOne, 1, experts);
}

Routing RoutingBuffers::of(int32_t tokens) const {
  return {.num_tokens = tokens,
          .num_experts = static_cast<int32_t>(counts.dim(1)),
          .top_k = static_cast<int32_t>(ids.dim(1)),
          .ids = ids.as<int32_t>(),
          .p = p.as<float>(),
          .counts = counts.as<int32_t>(),
          .offsets = offsets.as<int32_t>(),
          .slot = slot.as<int32_t>(),
          .token = token.as<int32_t>(),
          .room = logits.as<float>()};
}

void SiteModel::describe(ModelInfo info) {
  info_ = std::move(info);
  const std::vector<WantedWeight> weights = wanted();
  for (const WantedWeight& w : weights) info_.parameters += num_elements(w.spec);
  info_.parts = sum_parts(weights);
  for (const WeightPart& part : info_.parts) {
    info_.weight_bytes += part.bytes;
    info_.weight_bytes_per_token += part.bytes / part.choices * part.chosen;
  }
  for (const Site& site : sites_)
    if (site.key.op != Op::kAttention && site.key.op != Op::kNormUnembed)
      info_.flops_per_token += work_of(site.problem, {}).flops;
}

// ---- loading ----

std::vector<WantedWeight> SiteModel::wanted() const {
  std::vector<WantedWeight> all;
  for (const Declared& d : declared_) {
    all.push_back(d.want);
    if (d.want.spec.shape.size() > 1 && d.vector == nullptr)
      all.back().layout = d.site->plan.layout();
  }
  return all;
}

std::vector<WeightSpec> SiteModel::weight_specs() const {
  std::vector<WeightSpec> specs;
  for (const Declared& d : declared_) specs.push_back(d.want.spec);
  return specs;
}

LoadedWeights SiteModel::read(const Ctx& cx, const ModelFiles& files, const LoadOptions& options) {
  std::vector<WantedWeight> all = wanted();
  const auto is_mxfp8 = [](const WantedWeight& w) { return w.format == Format::kMxfp8; };
  if (options.format == LoadFormat::kDummy && options.memory.random &&
      std::ranges::none_of(all, is_mxfp8))
    return {all, options.memory, options.seed};
  std::unique_ptr<Checkpoint> checkpoint;
  if (options.format == LoadFormat::kDummy) {
    std::vector<WeightSpec> specs;
    for (WantedWeight& w : all) {
      if (w.format == Format::kMxfp4) w.spec.format = w.format;  // made as it is wanted
      specs.push_back(w.spec);
    }
    checkpoint = dummy_checkpoint(specs, options.seed);
  } else {
    checkpoint = open_checkpoint(files.require_weights());
    check(*checkpoint);
  }
  return {*checkpoint, all, options.memory, cx.threads(), options.progress};
}

void SiteModel::bind() {
  for (const Declared& d : declared_) {
    const std::string& name = d.want.spec.name;
    if (d.vector != nullptr) {
      *d.vector = loaded_.vector(name);
    } else if (d.want.spec.shape.size() > 1 && !d.want.joined) {
      d.site->weight = loaded_.matrix(name, "", d.site->weight.rows);  // its bias comes behind it
    }
  }
}

void SiteModel::load(const Ctx& cx, const ModelFiles& files, const LoadOptions& options) {
  plan(cx.kernels);
  loaded_ = read(cx, files, options);
  bind();
}

// ---- steps ----

Tensor SiteModel::shaped(const Act& act, const Sizes& sizes, void* data) {
  const int64_t count = act.count == Count::kTokens ? sizes.tokens
                        : act.count == Count::kOut  ? sizes.out
                                                    : 1;
  const DType dtype = act.is_stored && sizes.on_gpu ? DType::kBF16 : act.dtype;
  return make_tensor(data, dtype, {count * act.rows, act.cols});
}

SiteModel::Sizes SiteModel::sizes_of(const Ctx& cx, const StepLimits& limits) const {
  int64_t scratch = cx.on_gpu() ? ops::gpu::sample_scratch_bytes(limits.max_out) : 0;
  for (const Site& site : sites_)
    scratch = std::max(scratch, ops::scratch_bytes(site, cx, limits.max_tokens, limits.max_out));
  return {limits.max_tokens, limits.max_out, scratch, cx.on_gpu()};
}

int64_t SiteModel::scratch_bytes(const Ctx& cx, const StepLimits& limits) const {
  const Sizes sizes = sizes_of(cx, limits);
  int64_t sum = ops::prepared_bytes(cx, sites_) + Arena::padded(sizes.scratch_bytes);
  if (sizes.on_gpu) sum += Arena::padded(Ctx::kNumCounters * int64_t{4});
  for (const Act& act : acts_) sum += Arena::padded(shaped(act, sizes, nullptr).size_bytes());
  return sum;
}

void SiteModel::reserve(const Ctx& cx, const StepLimits& limits) {
  const Sizes sizes = sizes_of(cx, limits);
  arena_ = Arena(cx.allocate(scratch_bytes(cx, limits) - ops::prepared_bytes(cx, sites_)));
  for (const Act& act : acts_) {
    *act.tensor = shaped(act, sizes, nullptr);
    *act.tensor = arena_.take(act.tensor->dtype, {act.tensor->dim(0), act.tensor->dim(1)});
  }
  counters_ = arena_.take(DType::kI32, {sizes.on_gpu ? Ctx::kNumCounters : 0});
  scratch_ = arena_.take(DType::kU8, {sizes.scratch_bytes});
  limits_ = limits;
  prepared_ = ops::prepare_weights(cx, sites_);
}

Tensor SiteModel::forward(Ctx& cx, const Step& step, const SeqState& kv) {
  CHECK(step.num_tokens <= limits_.max_tokens && step.num_out <= limits_.max_out);
  cx.stream.order.begin_step();
  cx.scratch = {static_cast<std::byte*>(scratch_.data), static_cast<size_t>(scratch_.size_bytes())};
  cx.counters = static_cast<uint32_t*>(counters_.data);
  const Sizes sizes{step.num_tokens, step.num_out, scratch_.size_bytes(), cx.on_gpu()};
  for (const Act& act : acts_) *act.tensor = shaped(act, sizes, act.tensor->data);
  return run(cx, step, kv);
}

void SiteModel::tap(const Ctx& cx, int layer, std::initializer_list<Named> all) {
  if (!cx.tap) return;
  for (const auto& [name, tensor] : all) {
    if (!cx.tap_only.empty() && cx.tap_only != name) continue;  // a copy from a GPU is slow
    Buffer memory;
    cx.tap(name, layer, cx.on_host(*tensor, memory));
  }
}

}  // namespace nibble
