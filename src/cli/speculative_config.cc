#include "cli/speculative_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cli/dense_flags.h"
#include "cli/draft_vocab.h"
#include "cli/json.h"
#include "cli/suggestion.h"
#include "engine/speculation_counts.h"

namespace nibble::cli {
namespace {

using Method = SpeculationOptions::Method;

// Known to vLLM; each needs weights of its own.
constexpr const char* kWithWeights[] = {"eagle",  "medusa",      "dflash",
                                        "dspark", "draft_model", "mlp_speculator"};
// All the same: the layer of the checkpoint, whatever its family.
constexpr const char* kMtp[] = {"mtp", "qwen3_next_mtp", "qwen3_5_mtp", "qwen3_5_moe_mtp"};

// Fields of vLLM's that change neither the text nor who drafts.
constexpr std::pair<const char*, const char*> kWithoutMeaning[] = {
    {"draft_tensor_parallel_size", "of several ranks the first one drafts alone"},
    {"enforce_eager", "--enforce-eager says so of all steps"},
    {"max_model_len", "a head drafts as far as the model goes"},
    {"kv_cache_dtype", "a head's keys and values are as --kv-cache-dtype says"},
    {"attention_backend", "nibble's own kernels run"},
    {"moe_backend", "nibble's own kernels run"},
    {"draft_load_config", "a head is loaded as the model is"},
    {"code_revision", "code in checkpoints is never run"},
    {"disable_padded_drafter_batch", "batches of drafts are never padded"},
    {"disable_eagle_block_drop", "no page of the prefix cache is dropped"},
    {"use_local_argmax_reduction", "a head's matrix is not split"}};
// What these would turn on.
constexpr std::pair<const char*, const char*> kOnlyOff[] = {
    {"parallel_drafting", "drafts are made one after the other"},
    {"use_heterogeneous_vocab", "a head has its model's ids, or some of them"},
    {"enable_adaptive_verification", "\"adaptive\" chooses how many drafts are verified"}};

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::kUsage, "--speculative-config: " + what);
}

// Reads each field once; what is left is not known.
class Fields {
 public:
  explicit Fields(const std::string& text)
      : json_(Json::parse(text, nullptr, /*allow_exceptions=*/false)) {
    if (!json_.is_object()) {
      refuse("expected a JSON object, such as {\"method\":\"ngram\",\"num_speculative_tokens\":5}");
    }
  }

  bool has(const char* name) const { return json_.contains(name) && !json_[name].is_null(); }
  std::string word(const char* name, const std::string& otherwise) {
    known_.push_back(name);
    if (!has(name)) return otherwise;
    if (!json_[name].is_string()) refuse(std::string(name) + " must be a text");
    return json_[name];
  }
  bool flag(const char* name, bool otherwise) {
    known_.push_back(name);
    if (!has(name)) return otherwise;
    if (!json_[name].is_boolean()) refuse(std::string(name) + " must be true or false");
    return json_[name];
  }
  int32_t integer(const char* name, int32_t otherwise, int32_t low, int32_t high) {
    known_.push_back(name);
    if (!has(name)) return otherwise;
    const Json& value = json_[name];
    if (!value.is_number_integer() || value < low || value > high) {
      refuse(std::string(name) + " must be " + std::to_string(low) + " to " + std::to_string(high) +
             ", not " + value.dump());
    }
    return value;
  }
  double number(const char* name, double otherwise, double low, double high) {
    known_.push_back(name);
    if (!has(name)) return otherwise;
    return number_in(json_[name], name, low, high);
  }
  std::vector<double> numbers(const char* name) {
    known_.push_back(name);
    std::vector<double> values;
    if (!has(name)) return values;
    if (!json_[name].is_array()) refuse(std::string(name) + " must be a list of numbers");
    for (const Json& value : json_[name]) values.push_back(number_in(value, name, 0, 1));
    return values;
  }
  const Json& list(const char* name) {
    known_.push_back(name);
    static const Json kNone;
    if (!has(name)) return kNone;
    if (!json_[name].is_array()) refuse(std::string(name) + " must be a list");
    return json_[name];
  }
  // Says what those without a meaning mean here.
  void read_others_of_vllm() {
    for (const auto& [name, meaning] : kWithoutMeaning) {
      known_.emplace_back(name);
      if (has(name)) LOG_INFO("--speculative-config: %s: %s", name, meaning);
    }
    for (const auto& [name, instead] : kOnlyOff)
      if (flag(name, false)) refuse(std::string(name) + " is not what nibble does: " + instead);
  }
  void refuse_others() const {
    for (const auto& [name, value] : json_.items()) {
      if (std::ranges::find(known_, name) == known_.end()) {
        refuse("there is no field \"" + name + "\"" + did_you_mean(name, known_));
      }
    }
  }

 private:
  static double number_in(const Json& value, const char* name, double low, double high) {
    if (!value.is_number() || value < low || value > high) {
      refuse(std::string(name) + " must be " + Json(low).dump() + " to " + Json(high).dump() +
             ", not " + value.dump());
    }
    return value;
  }

  Json json_;
  std::vector<std::string> known_;
};

bool is_mtp(const std::string& method) { return std::ranges::find(kMtp, method) != std::end(kMtp); }

Method method_of(const std::string& name) {
  if (name == "ngram" || name == "ngram_gpu") return Method::kNgram;
  if (name == "suffix") return Method::kSuffix;
  if (name == "eagle3" || is_mtp(name)) return Method::kHead;
  const std::string known =
      "; \"ngram\" and \"suffix\" draft from the text alone, \"eagle3\" by a head, \"mtp\" by "
      "the model's own layer";
  if (name.empty()) refuse("it needs a \"method\"" + known);
  if (name.ends_with("_mtp"))
    refuse("method \"" + name + "\" is of a family whose MTP layer nibble does not run" + known);
  if (std::ranges::find(kWithWeights, name) != std::end(kWithWeights)) {
    refuse("method \"" + name + "\" needs a drafter's weights, which nibble does not run yet" +
           known);
  }
  refuse("there is no method \"" + name + "\"" +
         did_you_mean(name, {"ngram", "suffix", "eagle3", "mtp"}) + known);
}

// As in vLLM: 5 where neither is given, else each is what the other one is.
void read_ngram(Fields& fields, SpeculationOptions& options) {
  constexpr int32_t kMost = 1024;
  const bool has_max = fields.has("prompt_lookup_max");
  options.ngram_min = fields.integer("prompt_lookup_min", 0, 1, kMost);
  options.ngram_max = fields.integer("prompt_lookup_max", std::max(options.ngram_min, 0), 1, kMost);
  if (options.ngram_max == 0) options.ngram_max = 5;
  if (options.ngram_min == 0) options.ngram_min = options.ngram_max;
  if (has_max && options.ngram_min > options.ngram_max) {
    refuse("prompt_lookup_min (" + std::to_string(options.ngram_min) +
           ") is more than prompt_lookup_max (" + std::to_string(options.ngram_max) + ")");
  }
}

// By the size of the batch: lists of its least and most sequences and of their drafts. Between two
// lists and behind the last one it stays as it was, as in vLLM.
void read_batches(Fields& fields, SpeculationOptions& options) {
  constexpr const char* kName = "num_speculative_tokens_per_batch_size";
  constexpr int32_t kMostSeqs = 1 << 30;
  const auto fail = [&](const std::string& what) { refuse(std::string(kName) + " " + what); };
  const auto is_in = [](const Json& value, int32_t low, int32_t high) {
    return value.is_number_integer() && value >= low && value <= high;
  };
  std::vector<std::array<int32_t, 3>> lists;
  for (const Json& one : fields.list(kName)) {
    if (!one.is_array() || one.size() != 3 || !is_in(one[0], 1, kMostSeqs) ||
        !is_in(one[1], 1, kMostSeqs) || !is_in(one[2], 0, options.num_tokens) || one[0] > one[1])
      fail("must hold lists such as [1, 4, " + std::to_string(options.num_tokens) +
           "]: least and most sequences, and up to num_speculative_tokens drafts; not " +
           one.dump());
    lists.push_back({one[0], one[1], one[2]});
  }
  std::ranges::sort(lists);
  for (size_t i = 0; i < lists.size(); ++i) {
    if (i == 0 && lists[i][0] != 1) fail("must begin with a batch of 1 sequence");
    if (i > 0 && lists[i][0] <= lists[i - 1][1])
      fail("says twice what holds for " + std::to_string(lists[i][0]) + " sequences");
    options.by_batch.push_back({.num_seqs = lists[i][0], .num_tokens = lists[i][2]});
  }
}

void read_suffix(Fields& fields, SpeculationOptions& options) {
  options.suffix_max_depth =
      fields.integer("suffix_decoding_max_tree_depth", options.suffix_max_depth, 1, 1024);
  options.suffix_max_requests = fields.integer("suffix_decoding_max_cached_requests",
                                               options.suffix_max_requests, 0, 1 << 30);
  options.suffix_max_factor =
      fields.number("suffix_decoding_max_spec_factor", options.suffix_max_factor, 0, 100);
  options.suffix_min_token_probability =
      fields.number("suffix_decoding_min_token_prob", options.suffix_min_token_probability, 0, 1);
}

void read_quantization(Fields& fields, SpeculationOptions& options) {
  const std::string name = fields.word("quantization", "");
  if (name.empty()) return;
  try {
    options.head_dense = dense_formats({.dense_format = name, .mxfp4_layers = {}});
  } catch (const Error&) {
    refuse("quantization must be bf16, mxfp8, mxfp4 or nvfp4, not \"" + name + "\"");
  }
}

void read_head_ids(Fields& fields, bool is_mtp, SpeculationOptions& options) {
  const int32_t size = fields.integer("draft_vocab_size", 0, 1, kMostDraftIds);
  const std::string file = fields.word("draft_vocab_file", "");
  if (size == 0 && file.empty()) return;
  if (!is_mtp)
    refuse(std::string(size > 0 ? "draft_vocab_size" : "draft_vocab_file") +
           " is for method \"mtp\"; an Eagle3 head has a vocabulary of its own");
  options.head_source.ids = read_draft_vocab(file, size);
}

// Of steps that give `length` tokens in the mean, and never much more or less than that.
std::vector<double> rates_of(double length, int32_t num_tokens) {
  std::vector<double> rates;
  for (int32_t i = 0; i < num_tokens; ++i) rates.push_back(std::clamp(length - 1 - i, 0.0, 1.0));
  return rates;
}

void read_verification(Fields& fields, SpeculationOptions& options) {
  const std::string method = fields.word("rejection_sample_method", "");
  options.synthetic_rates = fields.numbers("synthetic_acceptance_rates");
  const double length =
      fields.number("synthetic_acceptance_length", 0, 1, 1.0 + options.num_tokens);
  if (length > 0 && !options.synthetic_rates.empty())
    refuse("synthetic_acceptance_length and synthetic_acceptance_rates say the same: one of them");
  if (length > 0) options.synthetic_rates = rates_of(length, options.num_tokens);
  const std::vector<double>& rates = options.synthetic_rates;
  if (method == "synthetic") {
    if (std::ssize(rates) != options.num_tokens) {
      refuse(
          "rejection_sample_method \"synthetic\" needs synthetic_acceptance_rates, one for "
          "each of num_speculative_tokens: how often it and all before it come true; or "
          "synthetic_acceptance_length, tokens of a step");
    }
    if (!std::ranges::is_sorted(rates, std::greater{})) {
      refuse("synthetic_acceptance_rates must not rise: each is that all before it came true too");
    }
    if (options.method != Method::kHead) options.method = Method::kSynthetic;
  } else if (!method.empty() && method != "standard" && method != "block") {
    refuse("rejection_sample_method must be standard, block or synthetic, not \"" + method + "\"");
  } else if (!rates.empty()) {
    refuse(std::string(length > 0 ? "synthetic_acceptance_length" : "synthetic_acceptance_rates") +
           " is for rejection_sample_method \"synthetic\"");
  }
  const std::string sampled = fields.word("draft_sample_method", "greedy");
  options.draws_drafts = sampled == "probabilistic";
  if (options.draws_drafts && options.method != Method::kHead) {
    refuse("draft_sample_method must be greedy: these methods draw nothing");
  }
  if (!options.draws_drafts && sampled != "greedy") {
    refuse("draft_sample_method must be greedy or probabilistic, not \"" + sampled + "\"");
  }
  if (options.draws_drafts && method == "standard")
    options.drawn_rule = VerificationRule::kStandard;
  if (options.draws_drafts && method == "block") options.drawn_rule = VerificationRule::kBlock;
}

bool is_word_for_none(const std::string& model) {
  return model == "[ngram]" || model == "ngram" || model == "ngram_gpu" || model == "suffix";
}

// The method, where none is given: as in vLLM, that of a head's name.
std::string said_by_model(const std::string& model) {
  if (model == "[ngram]") return "ngram";
  std::string lower = model;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower.find("eagle3") != std::string::npos) return "eagle3";
  return is_word_for_none(model) ? model : "";
}

}  // namespace

SpeculationOptions parse_speculative_config(const std::string& json) {
  SpeculationOptions options;
  if (json.empty()) return options;
  Fields fields(json);
  const std::string model = fields.word("model", "");
  const std::string method = fields.word("method", said_by_model(model));
  options.method = method_of(method);
  const bool is_head = options.method == Method::kHead;
  if (is_head && model.empty() && !is_mtp(method))
    refuse("method \"eagle3\" needs a \"model\": the head's directory");
  if (is_head) options.head_source.directory = model;
  if (is_head && model.empty() && fields.has("revision"))
    refuse("\"revision\" is of the head that \"model\" names");
  if (is_head) options.head_source.revision = fields.word("revision", "main");
  if (!model.empty() && !is_word_for_none(model) && !is_head) {
    refuse("\"model\" names a drafter's weights; the method has none");
  }
  const bool is_suffix = options.method == Method::kSuffix;
  if (is_suffix) read_suffix(fields, options);
  if (options.method == Method::kNgram) read_ngram(fields, options);
  options.num_tokens =
      fields.integer("num_speculative_tokens",
                     is_suffix ? std::min(options.suffix_max_depth, kMaxDrafts) : 0, 1, kMaxDrafts);
  if (options.num_tokens == 0) refuse("it needs \"num_speculative_tokens\"");
  read_batches(fields, options);
  options.is_adaptive = fields.flag("adaptive", options.is_adaptive);
  if (is_head) {
    read_quantization(fields, options);
    read_head_ids(fields, is_mtp(method), options);
  }
  read_verification(fields, options);
  fields.read_others_of_vllm();
  fields.refuse_others();
  return options;
}

}  // namespace nibble::cli
