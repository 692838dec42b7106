#include "cli/draft_plan.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/json.h"
#include "engine/engine_options.h"
#include "engine/suffix_drafter.h"
#include "engine/suffix_index.h"
#include "io/checkpoint.h"
#include "io/hub.h"
#include "io/memory.h"
#include "models/draft_head.h"
#include "models/mtp_config.h"

namespace nibble::cli {
namespace {

using Method = SpeculationOptions::Method;

// A head's directory may have the tokenizer that it was trained with.
void refuse_other_tokenizer(const ModelFiles& model, const ModelFiles& head) {
  const auto ids_of = [](const std::filesystem::path& directory) {
    std::ifstream file(directory / "tokenizer.json");
    nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    return json.is_object()
               ? json.value(nlohmann::json::json_pointer("/model/vocab"), nlohmann::json())
               : nlohmann::json();
  };
  if (model.directory.empty() || head.directory.empty()) return;
  const nlohmann::json own = ids_of(model.directory), heads = ids_of(head.directory);
  if (own.is_null() || heads.is_null() || own == heads) return;
  throw Error(
      ErrorKind::kUnsupported,
      (head.directory / "tokenizer.json").string() +
          ": its ids are not those of the model's tokenizer; the head was made for another");
}

// The values of the norm behind the last layer, which no quantizer changes; none where the
// directory lacks it, as one with an MTP layer alone may.
std::vector<char> last_norm_of(const ModelFiles& files) {
  std::vector<char> values;
  if (files.weights.empty()) return values;
  const auto checkpoint = open_checkpoint(files.weights);
  for (const char* name : {"model.norm.weight", "model.language_model.norm.weight"}) {
    const TensorInfo* const norm = checkpoint->find(name);
    if (norm == nullptr || norm->dtype != DType::kBF16) continue;
    values.resize(norm->bytes);
    const ReadJob job = ReadJob::whole(*norm, values.data());
    checkpoint->read({&job, 1});
  }
  return values;
}

// A layer of another model of the same sizes can be run, and its drafts are verified as all are:
// so it is told of, and not refused, as a model that was trained on may keep the layer it had.
void tell_of_other_weights(const ModelFiles& model, const ModelFiles& head) {
  if (model.directory == head.directory) return;
  const std::vector<char> own = last_norm_of(model), heads = last_norm_of(head);
  if (own.empty() || heads.empty() || own == heads) return;
  LOG_WARN(
      "%s: its last norm is not the model's: the MTP layer there was trained beside other "
      "weights, and its drafts may seldom come true (/metrics says how many do)",
      head.weights.c_str());
}

// Of several ranks the first one drafts, beside whom the others only make room for the same pages.
DraftNeed plan_head(const std::string& model, const ops::Ctx& cx, const DenseFormats& models_dense,
                    EngineOptions& options, const Shard& shard) {
  SpeculationOptions& drafts = options.speculation;
  const DenseFormats dense = drafts.head_dense.value_or(models_dense);
  const bool is_own = drafts.head_source.directory.empty();
  if (is_own && !may_have_mtp(find_model(model).config))
    throw Error(ErrorKind::kUnsupported,
                "--speculative-config: " + model + " is of no family whose MTP layer nibble runs " +
                    "(Qwen3-Next, Qwen3.5); \"ngram\" and \"suffix\" draft from the text alone");
  if (is_own) drafts.head_source.directory = model;
  const ModelFiles target = find_model(model),
                   files = find_model(drafts.head_source.directory, drafts.head_source.revision);
  refuse_other_tokenizer(target, files);
  if (may_have_mtp(files.config)) tell_of_other_weights(target, files);
  const DraftHeadInfo head = describe_draft_head(drafts.head_source, model, dense, shard);
  drafts.head_group = head.model.groups.at(0);
  drafts.head_vocab_size = head.model.vocab_size;
  drafts.head_row_bytes = static_cast<int64_t>(head.target_layers.size()) * head.target_width *
                          static_cast<int64_t>(sizeof(float));
  const LayerGroup& group = drafts.head_group;
  const StepLimits limits = HeadDrafter::Limits{.max_tokens = options.max_num_batched_tokens,
                                                .max_num_seqs = options.max_num_seqs}
                                .steps();
  return {
      .weight_bytes = head.model.weight_bytes,
      .bytes_per_draft = head.model.weight_bytes_per_token,
      .scratch_bytes = describe_draft_scratch(cx, drafts.head_source, model, limits, dense, shard),
      .kv_bytes_per_token =
          int64_t{2} * group.num_kv_heads * group.head_dim * dtype_bytes(options.kv_dtype),
      .target_layers = head.target_layers,
      .head = is_own ? "the model's MTP layer" : drafts.head_source.directory};
}

}  // namespace

std::string DraftNeed::text(const ModelInfo& target, const SpeculationOptions& options) const {
  if (options.method == Method::kNgram) return "drafts from each text, which take no memory";
  if (options.method == Method::kSuffix)
    return "drafts from each text and past answers: " + format_size(past_bytes) + " for these, " +
           std::to_string(request_bytes_per_token) + " bytes a token of each request's memory";
  if (options.method != Method::kHead) return "";
  char share[32];
  std::snprintf(share, sizeof(share), "%.1f%%",
                100.0 * static_cast<double>(bytes_per_draft) /
                    static_cast<double>(target.weight_bytes_per_token));
  const std::string scratch =
      scratch_bytes > 0 ? ", " + format_size(scratch_bytes) + " of scratch" : "";
  return "drafts by " + head + ": " + format_size(weight_bytes) + " of weights" + scratch + ", " +
         std::to_string(kv_bytes_per_token) + " bytes a token of KV cache; a draft reads " + share +
         " of what a token of the model reads";
}

DraftNeed plan_drafts(const std::string& model, const ops::Ctx& cx,
                      const DenseFormats& models_dense, EngineOptions& options,
                      const Shard& shard) {
  const SpeculationOptions& drafts = options.speculation;
  if (drafts.method == Method::kHead) return plan_head(model, cx, models_dense, options, shard);
  if (drafts.method != Method::kSuffix) return {};
  constexpr int32_t kMany = 1 << 20;
  return {.past_bytes = SuffixDrafter::bytes(drafts),
          .request_bytes_per_token = SuffixIndex::bytes(kMany) / kMany};
}

}  // namespace nibble::cli
