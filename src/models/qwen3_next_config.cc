#include "models/qwen3_next_config.h"

#include "models/config_sizes.h"
#include "models/hybrid_config.h"
#include "models/rope_config.h"

namespace nibble {
namespace {

constexpr double kMaxParameters = 1e15;    // keeps every sum of bytes within int64_t
constexpr int64_t kMostExperts = 1 << 17;  // of all layers: each has tensors of its own

// What both have. `config`: of the text alone.
Qwen3NextConfig parse(const Config& config, ops::DeltaInputs inputs) {
  check_gated_attention(config);
  Qwen3NextConfig c;
  c.is_recurrent = parse_recurrent_layers(config);
  c.hidden = config.integer("hidden_size", 1, kMaxDim);
  c.q_heads = config.integer("num_attention_heads", 1, 4096);
  c.kv_heads = config.integer("num_key_value_heads", 1, 4096);
  c.head_dim = config.integer("head_dim", 2, 1024);
  c.experts = config.integer("num_experts", 1, 4096);
  c.top_k = config.integer("num_experts_per_tok", 1, c.experts);
  c.width = config.integer("moe_intermediate_size", 1, kMaxDim);
  c.shared_width = config.integer("shared_expert_intermediate_size", 1, kMaxDim);
  c.vocab = config.integer("vocab_size", 1, 1 << 24);
  c.max_positions = config.integer("max_position_embeddings", 1, 1 << 30);
  c.norm_eps = static_cast<float>(config.number_or("rms_norm_eps", 1e-6, 0, 1));
  c.delta = parse_delta_rule(config, inputs);
  if (c.q_heads % c.kv_heads != 0)
    config.fail("num_attention_heads", "is not a multiple of num_key_value_heads");
  if (config.integer_or("decoder_sparse_step", 1, 1, 1000) != 1)
    config.fail("decoder_sparse_step", "is not 1; nibble has experts in every layer here");
  if (config.has("mlp_only_layers") && !config.integers("mlp_only_layers", 0, 1000).empty())
    config.fail("mlp_only_layers", "is not empty; nibble has experts in every layer here");
  if (c.experts * c.layers() > kMostExperts)
    config.fail("num_experts", "makes more than 131,072 experts with num_hidden_layers");
  if (static_cast<double>(3 * c.width * c.hidden) * static_cast<double>(c.experts * c.layers()) >
      kMaxParameters)
    config.fail("num_experts", "makes more than 10^15 parameters with the other sizes");
  c.rope = parse_rope(config, parse_rotary_dim(config, c.head_dim), c.max_positions,
                      {"default", "yarn"});
  return c;
}

}  // namespace

Qwen3NextConfig parse_qwen3_next(const Config& config) {
  Qwen3NextConfig c = parse(config, ops::DeltaInputs::kByKeyHead);
  c.architecture = "Qwen3NextForCausalLM";
  c.prefix = "model.";
  c.over_all = !config.boolean_or("norm_topk_prob", true);
  c.is_tied = config.boolean_or("tie_word_embeddings", false);
  return c;
}

Qwen3NextConfig parse_qwen3_5_moe(const Config& config) {
  const TextConfig text(config);
  Qwen3NextConfig c = parse(text.config, ops::DeltaInputs::kInOrder);
  c.architecture = config.texts("architectures").at(0);
  c.prefix = text.prefix;
  c.is_tied = text.is_tied;
  return c;
}

}  // namespace nibble
