#include "models/mtp_config.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "models/qwen3_5_config.h"
#include "models/qwen3_next_config.h"

namespace nibble {
namespace {

MtpConfig config_of(const HybridConfig& c, int64_t width) {
  return {.hidden = c.hidden,
          .q_heads = c.q_heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .vocab = c.vocab,
          .width = width,
          .is_tied = c.is_tied,
          .norm_eps = c.norm_eps,
          .rope = c.rope,
          .target_layers = static_cast<int32_t>(c.layers()),
          .max_positions = static_cast<int32_t>(c.max_positions)};
}
MtpConfig with_experts(const Qwen3NextConfig& c) {
  MtpConfig mtp = config_of(c, c.width);
  mtp.experts = c.experts, mtp.top_k = c.top_k, mtp.shared_width = c.shared_width;
  mtp.over_all = c.over_all;
  return mtp;
}

constexpr std::pair<const char*, MtpConfig (*)(const Config&)> kParsers[] = {
    {"Qwen3NextForCausalLM", [](const Config& c) { return with_experts(parse_qwen3_next(c)); }},
    {"Qwen3_5Moe", [](const Config& c) { return with_experts(parse_qwen3_5_moe(c)); }},
    {"Qwen3_5", [](const Config& all) {
       const Qwen35Config c = parse_qwen3_5(all);
       return config_of(c, c.width);
     }}};

const auto* parser_of(const Config& config) {
  const std::vector<std::string> names = config.texts("architectures");
  const auto is_it = [&](const auto& row) {
    return !names.empty() && names[0].starts_with(row.first);
  };
  const auto* const at = std::ranges::find_if(kParsers, is_it);
  return at == std::end(kParsers) ? nullptr : at;
}

// Without a key there is one layer, if any: the tensors say so.
void check_layers(const Config& config) {
  const Config text = config.object("text_config").value_or(config);
  for (const char* key : {"mtp_num_hidden_layers", "num_nextn_predict_layers"})
    if (const int64_t layers = text.integer_or(key, 1, 0, 1000); layers != 1)
      throw Error(ErrorKind::kUnsupported,
                  text.origin() + ": " + key + " is " + std::to_string(layers) +
                      (layers == 0 ? ": the model has no MTP layer to draft by"
                                   : "; nibble drafts by one MTP layer"));
  if (text.boolean_or("mtp_use_dedicated_embeddings", false))
    text.fail("mtp_use_dedicated_embeddings", "is true; nibble's MTP layer has its target's");
}

}  // namespace

bool may_have_mtp(const Config& config) { return parser_of(config) != nullptr; }

MtpConfig parse_mtp_config(const Config& config) {
  check_layers(config);
  const auto* const parser = parser_of(config);
  CHECK(parser != nullptr);
  return parser->second(config);
}

}  // namespace nibble
