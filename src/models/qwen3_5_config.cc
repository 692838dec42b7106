#include "models/qwen3_5_config.h"

#include "models/config_sizes.h"
#include "models/hybrid_config.h"
#include "models/rope_config.h"

namespace nibble {

Qwen35Config parse_qwen3_5(const Config& all) {
  const TextConfig text(all);
  const Config& config = text.config;
  check_gated_attention(config);
  Qwen35Config c;
  c.architecture = all.texts("architectures").at(0);
  c.prefix = text.prefix;
  c.is_tied = text.is_tied;
  c.is_recurrent = parse_recurrent_layers(config);
  c.hidden = config.integer("hidden_size", 1, kMaxDim);
  c.q_heads = config.integer("num_attention_heads", 1, 4096);
  c.kv_heads = config.integer("num_key_value_heads", 1, 4096);
  c.head_dim = config.integer("head_dim", 2, 1024);
  c.width = config.integer("intermediate_size", 1, kMaxDim);
  c.vocab = config.integer("vocab_size", 1, 1 << 24);
  c.max_positions = config.integer("max_position_embeddings", 1, 1 << 30);
  c.norm_eps = static_cast<float>(config.number_or("rms_norm_eps", 1e-6, 0, 1));
  c.delta = parse_delta_rule(config, ops::DeltaInputs::kInOrder);
  if (c.q_heads % c.kv_heads != 0)
    config.fail("num_attention_heads", "is not a multiple of num_key_value_heads");
  c.rope = parse_rope(config, parse_rotary_dim(config, c.head_dim), c.max_positions,
                      {"default", "yarn"});
  return c;
}

}  // namespace nibble
