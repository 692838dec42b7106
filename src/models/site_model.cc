#include "models/site_model.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"
#include "ops/prepare.h"
#include "ops/sample/sample.h"

namespace nibble {

using ops::Ctx;
using ops::Op;
using ops::Site;

std::string layer_name(const std::string& prefix, int64_t layer, const std::string& rest) {
  return prefix + "layers." + std::to_string(layer) + "." + rest;
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

const Site* SiteModel::add_sum(int layer, const std::string& buffer, int64_t cols,
                               const std::string& name) {
  if (!shard_.is_split()) return nullptr;
  return &add(layer, ops::AllReduceDesc{cols, shard_.size}, {buffer}, {buffer}, name);
}

Cut SiteModel::cut_columns_of(const std::string& module, int64_t cols, Format encoded) const {
  const Format on_disk = quantization_.format_of(module);
  return cut_columns(
      cols, std::max(format_row(on_disk).block_elems, format_row(encoded).block_elems), shard_);
}

Cut SiteModel::cut_vocab(int64_t vocab) const { return cut_units(vocab, kGroupRows, shard_); }

SiteModel::Declared& SiteModel::declare(Site& site, const char* part, const std::string& name,
                                        std::vector<int64_t> shape, Fill fill) {
  declared_.push_back(
      {.want = {.spec = {name, std::move(shape), Format::kBF16, fill}, .part = part},
       .site = &site});
  return declared_.back();
}

// The format that the problem wants of what lies in bf16.
Format wanted_format(const ops::Problem& problem) {
  return std::visit(
      [](const auto& desc) {
        if constexpr (requires { desc.format; }) return desc.format;
        return Format::kBF16;
      },
      problem);
}

// A matrix in the format that the config says, or encoded. Throws Error(kUnsupported) where
// --dense-format asks for what it cannot become, kCheckpoint where it has no whole blocks.
SiteModel::Declared& SiteModel::declare_matrix(Site& site, const char* part, const Rows& tensor,
                                               const Cut& cols, Fill fill) {
  Declared& declared =
      declare(site, part, tensor.name + ".weight", {tensor.rows.all(), cols.all}, fill);
  WantedWeight& w = declared.want;
  w.rows = tensor.rows, w.cols = cols;
  w.encoded = wanted_format(site.problem);
  if (const char* reason = refuse_encode(w.encoded, cols.all); w.encoded != Format::kBF16 && reason)
    throw Error(ErrorKind::kUnsupported, "--dense-format: " + w.spec.name + " cannot become " +
                                             std::string(format_name(w.encoded)) + ": " + reason);
  if (tensor.name != table_ && site.key.op != Op::kNormRoute)
    w.spec.format = quantization_.format_of(tensor.name);
  w.format = w.spec.format == Format::kBF16 ? w.encoded : w.spec.format;
  if (w.format != Format::kFp8Block && cols.all % format_row(w.format).block_elems != 0)
    throw Error(ErrorKind::kCheckpoint,
                quantization_.origin() + "quantization_config: " + w.spec.name + " has rows of " +
                    std::to_string(cols.all) + ", no whole blocks of " +
                    std::string(format_name(w.format)));
  return declared;
}

void SiteModel::matrix(Site& site, const char* part, const std::vector<Rows>& tensors,
                       const Cut& cols, Fill fill, bool has_bias) {
  site.weight = {.cols = cols.size};
  if (site.key.op == Op::kEmbed) table_ = tensors.at(0).name;
  for (const Rows& t : tensors) {
    WantedWeight& w = declare_matrix(site, part, t, cols, fill).want;
    w.joined = &t != &tensors[0];
    if (site.key.op == Op::kEmbed) w.choices = static_cast<int32_t>(t.rows.all());
    site.weight.rows += t.rows.size();
  }
  for (const Rows& t : tensors)  // layouts take each by whole groups
    site.in_rows |= tensors.size() > 1 && t.rows.size() % kGroupRows != 0;
  for (const Rows& t : tensors) {
    if (!has_bias) break;
    Declared& bias = declare(site, part, t.name + ".bias", {t.rows.all()}, Fill::kZero);
    bias.want.cols = cols.is_whole() ? t.rows : on_first(t.rows.all(), shard_);
    bias.want.joined = &t != &tensors[0];
    if (!bias.want.joined) bias.vector = &site.weight.bias;
  }
}

void SiteModel::gate_up(Site& site, const char* part, const Rows& gate, const Rows& up,
                        int64_t cols) {
  CHECK(gate.rows == up.rows);
  site.weight = {.rows = 2 * gate.rows.size(), .cols = cols};
  declare_matrix(site, part, gate, cols, Fill::kScaledNormal);
  declare_matrix(site, part, up, cols, Fill::kScaledNormal).want.interleaved = true;
}

void SiteModel::experts_apart(Site& site, const std::string& name,
                              const std::vector<std::string>& of, const Cut& rows, const Cut& cols,
                              Fill fill) {
  CHECK(of.size() == 1 || of.size() == 2);
  std::visit(
      [&](const auto& desc) {
        if constexpr (requires { desc.top_k; }) {
          const int64_t apart = desc.experts - desc.shared;
          site.weight = {.experts = apart, .rows = rows.size * std::ssize(of), .cols = cols.size};
          for (int64_t e = 0; e < apart; ++e)
            for (size_t i = 0; i < of.size(); ++i) {
              const Rows tensor{name + "." + std::to_string(e) + "." + of[i], rows};
              WantedWeight& w = declare_matrix(site, "experts", tensor, cols, fill).want;
              w.joined = e > 0 && i == 0;
              w.interleaved = i == 1;
              w.chosen = static_cast<int32_t>(desc.top_k - desc.shared);
              w.choices = static_cast<int32_t>(apart);
            }
        }
      },
      site.problem);
}

void SiteModel::tie(Site& unembed, Site& embed, const Cut& vocab) {
  const auto table = std::ranges::find_if(
      declared_, [&](const Declared& d) { return d.site == &embed && d.is_matrix(); });
  CHECK(table != declared_.end());
  const WeightSpec spec = table->want.spec;
  if (dense_.unembed != Format::kBF16) {
    CHECK(spec.name.ends_with(".weight"));
    return matrix(unembed, "unembed",
                  {{spec.name.substr(0, spec.name.size() - std::string(".weight").size()), vocab}},
                  spec.shape[1]);
  }
  table->want.part = "embed and unembed";
  table->want.choices = 1;  // the head reads all of it
  unembed.weight = embed.weight;
  unembed.weight.rows = vocab.size;
  unembed.in_rows = true;
  tied_.push_back({&unembed, &embed, vocab});
}

void SiteModel::share(Site& site, const Site& other) {
  CHECK(site.weight.codes == nullptr);
  site.weight = other.weight;
  site.in_rows = other.in_rows;
  if (std::ranges::find(shared_, &site) == shared_.end()) shared_.push_back(&site);
  settle_formats();
}

void SiteModel::experts(Site& site, const std::string& name, const Cut& rows, const Cut& cols,
                        Fill fill) {
  std::visit(
      [&](const auto& desc) {
        if constexpr (requires { desc.top_k; }) {
          site.weight = {.format = Format::kMxfp4,
                         .experts = desc.experts,
                         .rows = rows.size,
                         .cols = cols.size};
          WantedWeight& w =
              declare(site, "experts", name, {desc.experts, rows.all, cols.all}, fill).want;
          w.rows = rows, w.cols = cols;
          w.spec.format = w.format = w.encoded = Format::kMxfp4;
          w.chosen = static_cast<int32_t>(desc.top_k);
          w.choices = static_cast<int32_t>(desc.experts);
          Declared& bias =
              declare(site, "experts", name + "_bias", {desc.experts, rows.all}, Fill::kZero);
          bias.want.cols = cols.is_whole() ? rows : on_first(rows.all, shard_);
          bias.want.is_vector = true;  // becomes BF16 whatever it lies in
          bias.vector = &site.weight.bias;
        }
      },
      site.problem);
}

void SiteModel::norm(Site& site, const std::string& name, int64_t hidden, float eps, float offset) {
  head_norm(site, site.norm, name, hidden, eps, offset);
}

void SiteModel::head_norm(Site& site, Norm& norm, const std::string& name, int64_t dim, float eps,
                          float offset) {
  declare(site, "norms", name + ".weight", {dim}, offset == 0 ? Fill::kOne : Fill::kZero).vector =
      &norm.weight;
  norm.eps = eps;
  norm.offset = offset;
}

void SiteModel::gate(Site& site, const std::string& name, int64_t hidden) {
  Declared& declared =
      declare(site, "shared expert", name + ".weight", {1, hidden}, Fill::kScaledNormal);
  declared.want.is_vector = true;
  declared.vector = &site.gate;
}

WantedWeight& SiteModel::declare_floats(Site& site, const char* part, const std::string& name,
                                        std::vector<int64_t> shape, Fill fill, const float*& to) {
  Declared& declared = declare(site, part, name, std::move(shape), fill);
  declared.want.is_vector = true;
  declared.want.format = Format::kF32;
  declared.floats = &to;
  return declared.want;
}

void SiteModel::route_bias(Site& site, const std::string& name, int64_t experts) {
  declare_floats(site, "router", name, {experts}, Fill::kZero, site.route_bias);
}

void SiteModel::sinks(Site& site, const std::string& name, const Cut& heads) {
  Declared& sinks = declare(site, "attention", name, {heads.all}, Fill::kNormal);
  sinks.want.cols = heads;
  sinks.vector = &site.sinks;
}

void SiteModel::act(Tensor& t, const std::string& name, DType dtype, Count count, int64_t rows,
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
  act(r.logits, "router_logits", DType::kF32, Count::kOne, kMostLeft, experts);
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
  if (info_.logits.all == 0) info_.logits = info_.vocab_size;
  size_t num_recurrent = 0;
  for (const LayerGroup& group : info_.groups)
    if (group.is_recurrent()) num_recurrent += group.layers.size();
  info_.replays = num_recurrent > 0 && num_recurrent == delta_inputs_.size() + mamba_inputs_.size();
  settle_formats();
}

// ---- formats ----

void SiteModel::take_formats(const Checkpoint& checkpoint) {
  check(checkpoint);
  std::vector<WantedWeight> all;
  for (const Declared& d : declared_) all.push_back(d.want);
  take_disk_formats(checkpoint, all);
  for (size_t i = 0; i < all.size(); ++i) declared_[i].want = std::move(all[i]);
  take_kv_scales(checkpoint);
  settle_formats();
}

namespace {

// Of two that are multiplied as one. Where one is missing its format is what nobody said.
[[noreturn]] void refuse_formats(const Quantization& quantization, const WantedWeight& a,
                                 const WantedWeight& b) {
  for (const WantedWeight* w : {&a, &b})
    if (quantization.lacks(w->spec.name))
      throw Error(ErrorKind::kCheckpoint, quantization.origin() + "asks for tensor \"" +
                                              w->spec.name + "\", which is missing");
  throw Error(ErrorKind::kUnsupported, quantization.origin() + a.spec.name + " is " +
                                           std::string(format_name(a.format)) + " and " +
                                           b.spec.name + " " + std::string(format_name(b.format)) +
                                           "; nibble multiplies them as one matrix, of one format");
}

}  // namespace

// What is multiplied as one has one format: that of its site.
void SiteModel::settle_formats() {
  const Declared* first = nullptr;
  for (const Declared& d : declared_) {
    if (!d.is_matrix()) continue;
    if (d.is_first()) first = &d;
    const WantedWeight &a = first->want, &b = d.want;
    if (a.format != b.format) refuse_formats(quantization_, a, b);
    d.site->weight.format = d.want.format;
  }
  for (const Tied& tied : tied_) tied.site->weight.format = tied.other->weight.format;
  for (Site& site : sites_)
    std::visit(
        [&](auto& desc) {
          // One that shares another model's, or has rows of it, is told of it later.
          if constexpr (requires { desc.format; })
            if (site.weight.rows > 0) desc.format = site.weight.format;
        },
        site.problem);
  check_cuts();
  summarize();
}

// Nothing that shares a scale may be cut, on disk or in memory; rows of INT4 lie in eights.
void SiteModel::check_cuts() const {
  const auto is_between = [](const Cut& cut, int64_t unit) {
    return cut.begin % unit == 0 && (cut.end() % unit == 0 || cut.end() == cut.all);
  };
  for (const Declared& d : declared_) {
    const WantedWeight& w = d.want;
    const bool is_int4 = w.spec.format == Format::kInt4G32 || w.spec.format == Format::kInt4G128;
    bool fits = true;
    if (w.rows && is_int4)
      for (const Cut& part : w.rows->parts) fits &= is_between(part, 8);
    for (const Format format : {w.spec.format, w.format})
      if (w.cols && d.is_matrix())
        fits &= is_between(w.cols->only(), format_row(format).block_elems);
    if (fits) continue;
    throw Error(ErrorKind::kUnsupported, "--tensor-parallel-size " + std::to_string(shard_.size) +
                                             " would cut a block of " + w.spec.name + " (" +
                                             std::string(format_name(w.spec.format)) +
                                             "); say a smaller size");
  }
}

void SiteModel::summarize() {
  const std::vector<WantedWeight> weights = wanted();
  info_.parameters = info_.weight_bytes = info_.weight_bytes_per_token = info_.flops_per_token = 0;
  for (size_t i = 0; i < weights.size(); ++i)
    if (!is_seen(i)) info_.parameters += num_elements(weights[i].spec);
  info_.parts = sum_parts(weights);
  for (const WeightPart& part : info_.parts) {
    info_.weight_bytes += part.bytes;
    info_.weight_bytes_per_token += part.bytes / part.choices * part.chosen;
  }
  for (const Site* site : shared_)  // all of a head's, a row of an embedding's
    if (const Weight& w = site->weight; site->key.op == Op::kNormUnembed)
      info_.weight_bytes_per_token += w.rows * (w.row_code_bytes() + w.row_scale_bytes());
  for (const Site& site : sites_)
    if (site.key.op != Op::kAttention && site.key.op != Op::kNormUnembed)
      info_.flops_per_token += work_of(site.problem, {}).flops;
}

namespace {

// The layer that a tensor's name says, or -1.
int layer_of(const std::string& name) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = name.find(kLayers);
  if (at == std::string::npos) return -1;
  int layer = -1;
  std::from_chars(name.data() + at + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

// Scales of a cache in FP8. One that is of no layer here might be anybody's.
void SiteModel::take_kv_scales(const Checkpoint& checkpoint) {
  for (const KvScale& scale : read_kv_scales(checkpoint)) {
    const int layer = layer_of(scale.name);
    const bool is_k = !scale.name.ends_with("v_scale"), is_v = !scale.name.ends_with(".k_scale");
    bool is_taken = false;
    for (Site& site : sites_) {
      if (site.key.layer != layer || layer < 0) continue;
      if (site.key.op != Op::kNormQkv && site.key.op != Op::kAttention) continue;
      if (is_k) site.k_scale = scale.value;
      if (is_v) site.v_scale = scale.value;
      is_taken = true;
    }
    if (!is_taken && scale.value != 1 && info_.refuses_fp8_kv.empty())
      info_.refuses_fp8_kv =
          "tensor \"" + scale.name + "\" is " + std::to_string(scale.value) + " of no layer";
  }
}

// ---- loading ----

std::vector<WantedWeight> SiteModel::wanted() const {
  std::vector<WantedWeight> all;
  for (const Declared& d : declared_) {
    all.push_back(d.want);
    if (d.is_matrix()) all.back().layout = d.site->plan.layout();
  }
  return all;
}

std::vector<WeightSpec> SiteModel::weight_specs() const {
  std::vector<WeightSpec> specs;
  for (size_t i = 0; i < declared_.size(); ++i)
    if (!is_seen(i)) specs.push_back(declared_[i].want.spec);
  return specs;
}

LoadedWeights SiteModel::read(const Ctx& cx, const Checkpoint* checkpoint,
                              const LoadOptions& options) {
  std::vector<WantedWeight> all = wanted();
  if (checkpoint != nullptr)
    return {*checkpoint, all, options.memory, cx.threads(), options.progress};
  const auto is_made_there = [](const WantedWeight& w) {
    return w.format == Format::kBF16 || w.format == Format::kF32 || w.format == Format::kMxfp4 ||
           w.format == Format::kFp8Row || w.format == Format::kFp8Block ||
           w.format == Format::kMxfp8;
  };
  if (options.memory.random && std::ranges::all_of(all, is_made_there))
    return {all, options.memory, options.seed};
  std::vector<WeightSpec> specs;
  std::set<std::string> names;  // a head's matrix may be an embedding's, encoded
  for (WantedWeight& w : all) {
    if (w.format == Format::kMxfp4) w.spec.format = w.format;  // made as it is wanted
    if (names.insert(w.spec.name).second) specs.push_back(w.spec);
  }
  const auto dummy = dummy_checkpoint(specs, options.seed);
  return {*dummy, all, options.memory, cx.threads(), options.progress};
}

void SiteModel::bind() {
  for (size_t i = 0; i < declared_.size(); ++i) {
    const Declared& d = declared_[i];
    Site& site = *d.site;
    if (d.vector != nullptr) {
      *d.vector = num_elements(d.want) > 0 ? loaded_.vector(i) : nullptr;
    } else if (d.floats != nullptr) {
      *d.floats = loaded_.floats(i);
    } else if (d.is_matrix() && d.is_first()) {
      site.weight =
          loaded_.matrix(i, site.weight.experts, site.weight.rows);  // its bias comes behind it
    }
  }
  for (const Tied& tied : tied_)
    tied.site->weight = tied.other->weight.slice(tied.rows.begin, tied.rows.size);
}

std::unique_ptr<Checkpoint> SiteModel::mine(std::unique_ptr<Checkpoint> all) const {
  return select_tensors(std::move(all), [this](const std::string& name) { return reads(name); });
}

void SiteModel::load(const Ctx& cx, std::unique_ptr<Checkpoint> checkpoint,
                     const LoadOptions& options) {
  if (checkpoint != nullptr) {
    left_on_disk_ = {};
    for (const TensorInfo& t : checkpoint->tensors())
      if (is_of_images(t.name)) ++left_on_disk_.tensors, left_on_disk_.bytes += t.bytes;
    checkpoint = mine(std::move(checkpoint));
    take_formats(*checkpoint);
  }
  plan(cx.kernels);
  loaded_ = read(cx, checkpoint.get(), options);
  bind();
}

// ---- steps ----

Tensor SiteModel::shaped(const Act& act, const Sizes& sizes, void* data) {
  const int64_t count = act.count == Count::kTokens     ? sizes.tokens
                        : act.count == Count::kOut      ? sizes.out
                        : act.count == Count::kReplayed ? sizes.replayed
                                                        : 1;
  const DType dtype = act.is_stored && sizes.on_gpu ? DType::kBF16 : act.dtype;
  return make_tensor(data, dtype, {count * act.rows, act.cols});
}

SiteModel::Sizes SiteModel::sizes_of(const Ctx& cx, const StepLimits& limits) const {
  int64_t scratch = cx.on_gpu() ? ops::gpu::sample_scratch_bytes(limits.max_out) : 0;
  for (const Site& site : sites_)
    scratch = std::max(scratch, ops::scratch_bytes(site, cx, limits.max_tokens, limits.max_out));
  scratch += ops::left_choices_bytes(sites_, limits.max_tokens);
  return {limits.max_tokens, limits.max_out, limits.max_replayed, scratch, cx.on_gpu()};
}

int64_t SiteModel::scratch_bytes(const Ctx& cx, const StepLimits& limits) const {
  const Sizes sizes = sizes_of(cx, limits);
  int64_t sum = ops::prepared_bytes(cx, sites_) + Arena::padded(sizes.scratch_bytes);
  if (sizes.on_gpu) sum += Arena::padded(Ctx::kNumCounters * int64_t{4});
  sum += Arena::padded(ops::left_floats(sites_, limits.max_tokens) * int64_t{4});
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
  left_ = arena_.take(DType::kF32, {ops::left_floats(sites_, limits.max_tokens)});
  limits_ = limits;
  reserve_first_rows(cx);
  prepared_ = ops::prepare_weights(cx, sites_);
}

void SiteModel::begin(Ctx& cx, const Step& step) {
  cx.stream.order.begin_step();
  cx.scratch = {static_cast<std::byte*>(scratch_.data), static_cast<size_t>(scratch_.size_bytes())};
  cx.counters = static_cast<uint32_t*>(counters_.data);
  cx.left_heads = {.products = left_.num_elements() == 0 ? nullptr : left_.as<float>()};
  shape_acts(cx, step.num_tokens, step.num_out);
  num_entered_ = 0;
}

void SiteModel::shape_acts(const Ctx& cx, int64_t tokens, int64_t out) {
  const int64_t replayed = tokens <= limits_.max_replayed ? tokens : 0;
  const Sizes sizes{tokens, out, replayed, scratch_.size_bytes(), cx.on_gpu()};
  for (const Act& act : acts_) *act.tensor = shaped(act, sizes, act.tensor->data);
}

Tensor SiteModel::forward(Ctx& cx, const Step& step, const SeqState& kv) {
  CHECK(step.num_tokens <= limits_.max_tokens && step.num_out <= limits_.max_out);
  begin(cx, step);
  const Tensor logits = run(cx, step, kv);
  keep_normed(cx);
  CHECK(num_entered_ == kept_.size());  // else the model does not ask entering() for its layers
  return logits;
}

const Weight* SiteModel::embedding() const {
  CHECK(sites_.front().key.op == Op::kEmbed);
  return &sites_.front().weight;
}

void SiteModel::tap(const Ctx& cx, int layer, std::initializer_list<Named> all) {
  if (!cx.tap) return;
  for (const auto& [name, tensor] : all) {
    if (!cx.tap_only.empty() && cx.tap_only != name) continue;  // a copy from a GPU is slow
    if (cx.left_sum.site != nullptr && tensor->data == cx.left_sum.t.data) continue;
    Buffer memory;
    cx.tap(name, layer, cx.on_host(*tensor, memory));
  }
}

}  // namespace nibble
