#include "models/qwen3_next_config.h"

#include "models/config_sizes.h"

namespace nibble {
namespace {

// What both have. `config`: of the text alone.
Qwen3NextConfig with_experts(HybridConfig hybrid, const Config& config) {
  Qwen3NextConfig c{std::move(hybrid)};
  c.experts = config.integer("num_experts", 1, 4096);
  c.top_k = config.integer("num_experts_per_tok", 1, c.experts);
  c.width = config.integer("moe_intermediate_size", 1, kMaxDim);
  c.shared_width = config.integer("shared_expert_intermediate_size", 1, kMaxDim);
  if (config.integer_or("decoder_sparse_step", 1, 1, 1000) != 1)
    config.fail("decoder_sparse_step", "is not 1; nibble has experts in every layer here");
  if (config.has("mlp_only_layers") && !config.integers("mlp_only_layers", 0, 1000).empty())
    config.fail("mlp_only_layers", "is not empty; nibble has experts in every layer here");
  check_experts(config, "num_experts", c.experts * c.layers(), 3 * c.width * c.hidden);
  return c;
}

}  // namespace

Qwen3NextConfig parse_qwen3_next(const Config& config) {
  const TextConfig text(config);
  Qwen3NextConfig c = with_experts(
      parse_hybrid(text, "Qwen3NextForCausalLM", ops::DeltaInputs::kByKeyHead), text.config);
  c.over_all = !text.config.boolean_or("norm_topk_prob", true);
  return c;
}

Qwen3NextConfig parse_qwen3_5_moe(const Config& config) {
  const TextConfig text(config);
  return with_experts(
      parse_hybrid(text, config.texts("architectures").at(0), ops::DeltaInputs::kInOrder),
      text.config);
}

}  // namespace nibble
