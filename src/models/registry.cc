// The models that nibble knows, by the architecture that config.json names.
#include <algorithm>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "io/checkpoint.h"
#include "io/hub.h"
#include "models/eagle3.h"
#include "models/gpt_oss.h"
#include "models/llama.h"
#include "models/model.h"
#include "models/mtp.h"
#include "models/nemotron_h.h"
#include "models/quantization.h"
#include "models/qwen3.h"
#include "models/qwen3_5.h"
#include "models/qwen3_moe.h"
#include "models/qwen3_next.h"
#include "models/step_work.h"
#include "ops/general_rows.h"

namespace nibble {
namespace {

struct Architecture {
  const char* name;
  std::unique_ptr<SiteModel> (*make)(const Config&, Quantization, const DenseFormats&,
                                     const Shard&);
};

constexpr Architecture kArchitectures[] = {
    {"GptOssForCausalLM", make_gpt_oss},
    {"LlamaForCausalLM", make_llama},
    {"Qwen3ForCausalLM", make_qwen3},
    {"Qwen3MoeForCausalLM", make_qwen3_moe},
    {"Qwen3NextForCausalLM", make_qwen3_next},
    {"Qwen3_5MoeForConditionalGeneration", make_qwen3_5_moe},
    {"Qwen3_5MoeForCausalLM", make_qwen3_5_moe},
    {"Qwen3_5ForConditionalGeneration", make_qwen3_5},
    {"Qwen3_5ForCausalLM", make_qwen3_5},
    {"NemotronHForCausalLM", make_nemotron_h},
};

const Architecture& architecture_of(const ModelFiles& files) {
  const std::vector<std::string> names = files.config.texts("architectures");
  std::string known;
  for (const Architecture& a : kArchitectures) {
    for (const std::string& name : names)
      if (name == a.name) return a;
    known += std::string(known.empty() ? "" : ", ") + a.name;
  }
  throw Error(ErrorKind::kUnsupported,
              files.config.origin() + ": architectures: " + (names.empty() ? "none" : names[0]) +
                  " is not one that nibble has (" + known + ")");
}

// By what `checkpoint`, if there is one, has of each matrix, else by what the config says.
std::unique_ptr<SiteModel> make_model(const ModelFiles& files, const Checkpoint* checkpoint,
                                      const DenseFormats& dense, const Shard& shard) {
  const Architecture& architecture = architecture_of(files);
  Quantization quantization(files.config);
  if (checkpoint != nullptr) quantization.take(list_weights(*checkpoint, SiteModel::is_of_text));
  return architecture.make(files.config, std::move(quantization), dense, shard);
}

// Nothing of it is loaded. Where there is a checkpoint, its headers are read.
std::unique_ptr<SiteModel> make_model(const ModelFiles& files, const DenseFormats& dense,
                                      const Shard& shard = {}) {
  auto checkpoint = files.weights.empty() ? nullptr : open_checkpoint(files.weights);
  auto made = make_model(files, checkpoint.get(), dense, shard);
  if (checkpoint != nullptr) made->take_formats(*made->mine(std::move(checkpoint)));
  return made;
}

}  // namespace

ModelInfo describe_model(const std::string& model, const DenseFormats& dense, const Shard& shard) {
  return make_model(find_model(model), dense, shard)->info();
}

int64_t describe_scratch(const ops::Ctx& cx, const std::string& model, const StepLimits& limits,
                         const DenseFormats& dense, const std::vector<int32_t>& kept_layers,
                         const Shard& shard) {
  const auto made = make_model(find_model(model), dense, shard);
  made->keep_rows(kept_layers);
  return made->scratch_bytes(cx, limits);
}

std::vector<WeightSpec> list_wanted_weights(const std::string& model) {
  return make_model(find_model(model), {})->weight_specs();
}

std::vector<ops::PlanEntry> plan_kernels(const ops::Ctx& cx, const std::string& model,
                                         const DenseFormats& dense, const Shard& shard) {
  const auto made = make_model(find_model(model), dense, shard);
  made->plan(cx.kernels);
  return plan_entries(made->sites());
}

namespace {

// Of a head: its config, and its checkpoint where that is there.
struct HeadFiles {
  ModelFiles files;
  std::unique_ptr<Checkpoint> checkpoint;
  const std::vector<int32_t>& ids;
};
HeadFiles find_head(const DraftHeadSource& head, bool is_dummy = false) {
  HeadFiles found{find_model(head.directory, head.revision), nullptr, head.ids};
  if (!is_dummy && !found.files.weights.empty())
    found.checkpoint = open_checkpoint(found.files.weights);
  return found;
}

[[noreturn]] void refuse_other(const Config& config, const ModelInfo& target, const char* what,
                               int64_t has, int64_t wants) {
  throw Error(ErrorKind::kUnsupported, config.origin() + ": the head was made for a model with " +
                                           what + " " + std::to_string(has) + "; this one, " +
                                           target.architecture + ", has " + std::to_string(wants));
}

// Its embedding is the target's where it has none.
std::unique_ptr<DraftHead> make_eagle3_head(const HeadFiles& head, const SiteModel& target,
                                            const DenseFormats& dense) {
  const Config& config = head.files.config;
  const Weight& embedding = *target.embedding();
  if (!head.ids.empty())
    throw Error(ErrorKind::kUnsupported, config.origin() +
                                             ": an Eagle3 head has a vocabulary of its own; "
                                             "draft_vocab_size and draft_vocab_file are for mtp");
  if (std::ranges::any_of(target.info().groups, &LayerGroup::is_recurrent))
    throw Error(ErrorKind::kUnsupported,
                config.origin() + ": no Eagle3 head drafts for " + target.info().architecture +
                    " yet, whose layers are recurrent; its MTP layer does (\"method\":\"mtp\")");
  Eagle3Config c = parse_eagle3_config(config, target.info().num_layers);
  if (c.target_hidden != embedding.cols)
    refuse_other(config, target.info(), "a hidden size of", c.target_hidden, embedding.cols);
  if (c.target_vocab != target.info().vocab_size)
    refuse_other(config, target.info(), "a vocabulary of", c.target_vocab,
                 target.info().vocab_size);
  if (c.hidden != embedding.cols &&
      (head.checkpoint == nullptr || head.checkpoint->find("embed_tokens.weight") == nullptr))
    throw Error(ErrorKind::kUnsupported, config.origin() + ": hidden_size is " +
                                             std::to_string(c.hidden) + ", not the model's " +
                                             std::to_string(embedding.cols) +
                                             ", and the head has no embed_tokens of its own");
  auto made = make_eagle3(std::move(c), dense, Quantization(config), head.checkpoint.get());
  made->share_embedding(embedding);
  if (head.checkpoint != nullptr) made->take_formats(*head.checkpoint);
  made->read_ids(head.checkpoint.get());
  return made;
}

std::unique_ptr<DraftHead> make_mtp_head(const HeadFiles& head, const SiteModel& target,
                                         const DenseFormats& dense) {
  const Config& config = head.files.config;
  const ModelInfo& info = target.info();
  auto made = make_mtp(config, dense, head.ids);
  const MtpConfig& c = made->config();
  if (c.hidden != target.embedding()->cols)
    refuse_other(config, info, "a hidden size of", c.hidden, target.embedding()->cols);
  if (c.vocab != info.vocab_size)
    refuse_other(config, info, "a vocabulary of", c.vocab, info.vocab_size);
  if (c.target_layers != info.num_layers)
    refuse_other(config, info, "a number of layers of", c.target_layers, info.num_layers);
  for (const int32_t id : head.ids)
    if (id < 0 || id >= c.vocab)
      throw Error(
          ErrorKind::kUnsupported,
          config.origin() + ": id " + std::to_string(id) +
              " of draft_vocab_size or draft_vocab_file is not in the model's vocabulary of " +
              std::to_string(c.vocab));
  made->share_matrices(target);
  if (head.checkpoint != nullptr)
    made->take_formats(*made->mine(open_checkpoint(head.files.weights)));
  return made;
}

// Refuses a head for another model.
std::unique_ptr<DraftHead> make_head(const HeadFiles& head, const SiteModel& target,
                                     const DenseFormats& dense) {
  return may_have_mtp(head.files.config) ? make_mtp_head(head, target, dense)
                                         : make_eagle3_head(head, target, dense);
}

SiteModel& sites_of(DraftHead& head) { return dynamic_cast<SiteModel&>(head.model()); }

}  // namespace

DraftHeadInfo describe_draft_head(const DraftHeadSource& head, const std::string& target,
                                  const DenseFormats& dense, const Shard& shard) {
  const auto model = make_model(find_model(target), {}, shard);
  const auto made = make_head(find_head(head), *model, dense);
  return {made->model().info(), made->target_layers(), model->embedding()->cols};
}

int64_t describe_draft_scratch(const ops::Ctx& cx, const DraftHeadSource& head,
                               const std::string& target, const StepLimits& limits,
                               const DenseFormats& dense, const Shard& shard) {
  const auto model = make_model(find_model(target), {}, shard);
  return make_head(find_head(head), *model, dense)->model().scratch_bytes(cx, limits);
}

std::vector<ops::PlanEntry> plan_draft_kernels(const ops::Ctx& cx, const DraftHeadSource& head,
                                               const std::string& target, const DenseFormats& dense,
                                               const DenseFormats& target_dense,
                                               const Shard& shard) {
  const auto model = make_model(find_model(target), target_dense, shard);
  model->plan(cx.kernels);
  const auto made = make_head(find_head(head), *model, dense);
  sites_of(*made).plan(cx.kernels);
  return plan_entries(sites_of(*made).sites());
}

std::unique_ptr<DraftHead> load_draft_head(ops::Ctx& cx, const DraftHeadSource& head,
                                           const Model& target, const LoadOptions& options) {
  HeadFiles found = find_head(head, options.format == LoadFormat::kDummy);
  if (options.format != LoadFormat::kDummy) found.files.require_weights();
  auto made = make_head(found, dynamic_cast<const SiteModel&>(target), options.dense);
  SiteModel& sites = sites_of(*made);
  sites.load(cx, std::move(found.checkpoint), options);
  for (const std::string& line : ops::say_general_rows(plan_entries(sites.sites())))
    LOG_INFO("%s", line.c_str());
  return made;
}

std::vector<StepShape> shapes_at(const ops::Sites& sites, const StepShape& shape) {
  const int64_t tokens = shape.streams * shape.tokens;
  StepShape few = shape;
  if (const int64_t rows = rows_behind_mixers(shape.logits ? shape.streams : 0, tokens);
      rows < tokens)
    few.streams = rows, few.tokens = 1;
  int last = -1;
  for (const ops::Site& site : sites) last = std::max(last, site.key.layer);
  using enum ops::Op;
  bool is_behind = std::ranges::none_of(sites, [&](const ops::Site& site) {
    const ops::Op op = site.key.op;
    return site.key.layer == last && (op == kAttention || op == kDeltaRule || op == kMamba2);
  });
  std::vector<StepShape> shapes;
  for (const ops::Site& site : sites) {
    const bool is_last = site.key.layer == last;
    is_behind |= is_last && (site.key.op == kNormRoute || site.key.op == kMlpUp);
    shapes.push_back(is_last && is_behind ? few : shape);
  }
  return shapes;
}

std::vector<OpWork> describe_step_work(const std::string& model, const DenseFormats& dense,
                                       const StepShape& shape, const Shard& shard) {
  std::vector<OpWork> all;
  const auto made = make_model(find_model(model), dense, shard);
  const std::vector<StepShape> shapes = shapes_at(made->sites(), shape);
  for (const ops::Site& site : made->sites()) {
    const StepShape& at = shapes[all.size()];
    const ops::Work work = work_of(site.problem, at);
    const bool is_head = site.key.op == ops::Op::kNormUnembed;
    all.push_back({site.label, op_name(site.key.op), at.streams * (is_head ? 1 : at.tokens),
                   work.bytes, work.flops, site.weight.format});
  }
  return all;
}

std::vector<ops::Problem> list_problems(const std::string& model, const DenseFormats& dense) {
  std::vector<ops::Problem> problems;
  for (const ops::Site& site : list_sites(model, dense))
    if (std::ranges::find(problems, site.problem) == problems.end())
      problems.push_back(site.problem);
  return problems;
}

ops::Sites list_sites(const std::string& model, const DenseFormats& dense) {
  return make_model(find_model(model), dense)->sites();
}

ops::Sites planned_sites(const ops::Ctx& cx, const std::string& model, const DenseFormats& dense,
                         const Shard& shard) {
  const auto made = make_model(find_model(model), dense, shard);
  made->plan(cx.kernels);
  return made->sites();
}

const ops::Sites& sites_of(const Model& model) {
  const auto* of_sites = dynamic_cast<const SiteModel*>(&model);
  CHECK(of_sites != nullptr);
  return of_sites->sites();
}

std::unique_ptr<Model> load_model(ops::Ctx& cx, const std::string& model,
                                  const LoadOptions& options) {
  const ModelFiles files = find_model(model);
  const bool is_dummy = options.format == LoadFormat::kDummy;
  auto checkpoint = is_dummy ? nullptr : open_checkpoint(files.require_weights());
  auto made = make_model(files, checkpoint.get(), options.dense, options.shard);
  made->load(cx, std::move(checkpoint), options);
  if (const SiteModel::OfImages& left = made->left_on_disk(); left.tensors > 0)
    LOG_INFO(
        "%s: %lld tensors of what sees images (%.1f MB) stay on disk: nibble runs the text part",
        files.weights.c_str(), static_cast<long long>(left.tensors),
        static_cast<double>(left.bytes) / 1e6);
  for (const std::string& line : ops::say_general_rows(plan_entries(made->sites())))
    LOG_INFO("%s", line.c_str());
  return made;
}

}  // namespace nibble
