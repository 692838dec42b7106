// The configs of the models that nibble is built for, so that plan, bench and dummy weights need no
// download. Values: config.json of the repositories, less what inference never reads.
#include <array>

#include "io/config.h"

namespace nibble {
namespace {

struct GptOssSize {
  std::string_view repo_id;
  int layers;
  int experts;
};

constexpr GptOssSize kGptOss[] = {{"openai/gpt-oss-20b", 24, 32}, {"openai/gpt-oss-120b", 36, 128}};

constexpr const char* kCommon = R"(
  "architectures": ["GptOssForCausalLM"],
  "attention_bias": true,
  "attention_dropout": 0.0,
  "eos_token_id": 200002,
  "experts_per_token": 4,
  "head_dim": 64,
  "hidden_act": "silu",
  "hidden_size": 2880,
  "initial_context_length": 4096,
  "intermediate_size": 2880,
  "max_position_embeddings": 131072,
  "model_type": "gpt_oss",
  "num_attention_heads": 64,
  "num_experts_per_tok": 4,
  "num_key_value_heads": 8,
  "pad_token_id": 199999,
  "quantization_config": {
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                               "model.embed_tokens", "lm_head"],
    "quant_method": "mxfp4"
  },
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false
  },
  "rope_theta": 150000,
  "sliding_window": 128,
  "swiglu_limit": 7.0,
  "tie_word_embeddings": false,
  "vocab_size": 201088)";

std::string gpt_oss_json(const GptOssSize& size) {
  std::string layer_types;
  for (int l = 0; l < size.layers; ++l) {
    if (l > 0) layer_types += ", ";
    layer_types += l % 2 == 0 ? R"("sliding_attention")" : R"("full_attention")";
  }
  return "{\"num_hidden_layers\": " + std::to_string(size.layers) +
         ", \"num_local_experts\": " + std::to_string(size.experts) + ", \"layer_types\": [" +
         layer_types + "]," + kCommon + "}";
}

}  // namespace

std::optional<Config> builtin_config(std::string_view repo_id) {
  for (const GptOssSize& size : kGptOss)
    if (size.repo_id == repo_id)
      return Config::parse(gpt_oss_json(size), std::string(repo_id) + " (built in)");
  return std::nullopt;
}

}  // namespace nibble
