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

constexpr const char* kQwen3_8B = R"(
  "architectures": ["Qwen3ForCausalLM"],
  "attention_bias": false,
  "bos_token_id": 151643,
  "eos_token_id": 151645,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 12288,
  "max_position_embeddings": 40960,
  "model_type": "qwen3",
  "num_attention_heads": 32,
  "num_hidden_layers": 36,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 1000000,
  "tie_word_embeddings": false,
  "use_sliding_window": false,
  "vocab_size": 151936)";

constexpr const char* kQwen3_30B = R"(
  "architectures": ["Qwen3MoeForCausalLM"],
  "attention_bias": false,
  "bos_token_id": 151643,
  "decoder_sparse_step": 1,
  "eos_token_id": 151645,
  "head_dim": 128,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "intermediate_size": 6144,
  "max_position_embeddings": 40960,
  "mlp_only_layers": [],
  "model_type": "qwen3_moe",
  "moe_intermediate_size": 768,
  "norm_topk_prob": true,
  "num_attention_heads": 32,
  "num_experts": 128,
  "num_experts_per_tok": 8,
  "num_hidden_layers": 48,
  "num_key_value_heads": 4,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 1000000,
  "tie_word_embeddings": false,
  "use_sliding_window": false,
  "vocab_size": 151936)";

constexpr const char* kLlama31_8B = R"(
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": false,
  "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009],
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 14336,
  "max_position_embeddings": 131072,
  "mlp_bias": false,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {
    "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"
  },
  "rope_theta": 500000.0,
  "tie_word_embeddings": false,
  "vocab_size": 128256)";

constexpr const char* kQwen3Next = R"(
  "architectures": ["Qwen3NextForCausalLM"],
  "attention_bias": false,
  "bos_token_id": 151643,
  "decoder_sparse_step": 1,
  "eos_token_id": 151645,
  "full_attention_interval": 4,
  "head_dim": 256,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "intermediate_size": 5120,
  "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128,
  "linear_num_key_heads": 16,
  "linear_num_value_heads": 32,
  "linear_value_head_dim": 128,
  "max_position_embeddings": 262144,
  "mlp_only_layers": [],
  "model_type": "qwen3_next",
  "moe_intermediate_size": 512,
  "norm_topk_prob": true,
  "num_attention_heads": 16,
  "num_experts": 512,
  "num_experts_per_tok": 10,
  "num_hidden_layers": 48,
  "num_key_value_heads": 2,
  "partial_rotary_factor": 0.25,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 10000000,
  "shared_expert_intermediate_size": 512,
  "tie_word_embeddings": false,
  "vocab_size": 151936)";

constexpr const char* kQwen35_35B = R"(
  "architectures": ["Qwen3_5MoeForConditionalGeneration"],
  "model_type": "qwen3_5_moe",
  "text_config": {
    "attention_bias": false,
    "attn_output_gate": true,
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
      "mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
      "rope_theta": 10000000, "rope_type": "default"
    },
    "shared_expert_intermediate_size": 512,
    "vocab_size": 248320
  },
  "tie_word_embeddings": false)";

constexpr const char* kNemotron3Nano = R"(
  "architectures": ["NemotronHForCausalLM"],
  "attention_bias": false,
  "bos_token_id": 1,
  "chunk_size": 128,
  "conv_kernel": 4,
  "eos_token_id": 2,
  "head_dim": 128,
  "hidden_size": 2688,
  "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
  "intermediate_size": 1856,
  "layer_norm_epsilon": 1e-05,
  "mamba_head_dim": 64,
  "mamba_hidden_act": "silu",
  "mamba_num_heads": 64,
  "mamba_proj_bias": false,
  "mamba_ssm_cache_dtype": "float32",
  "max_position_embeddings": 262144,
  "mlp_bias": false,
  "mlp_hidden_act": "relu2",
  "model_type": "nemotron_h",
  "moe_intermediate_size": 1856,
  "moe_shared_expert_intermediate_size": 3712,
  "n_group": 1,
  "n_groups": 8,
  "n_routed_experts": 128,
  "n_shared_experts": 1,
  "norm_topk_prob": true,
  "num_attention_heads": 32,
  "num_experts_per_tok": 6,
  "num_hidden_layers": 52,
  "num_key_value_heads": 2,
  "routed_scaling_factor": 2.5,
  "ssm_state_size": 128,
  "tie_word_embeddings": false,
  "topk_group": 1,
  "use_bias": false,
  "use_conv_bias": true,
  "vocab_size": 131072)";

// Attention, and the Mamba2 layers in front of it, stay in BF16.
constexpr const char* kNanoNvfp4 = R"(,
  "quantization_config": {
    "ignore": ["backbone.layers.4.mixer.in_proj", "backbone.layers.4.mixer.out_proj",
               "backbone.layers.11.mixer.in_proj", "backbone.layers.11.mixer.out_proj",
               "backbone.layers.18.mixer.in_proj", "backbone.layers.18.mixer.out_proj",
               "backbone.layers.25.mixer.in_proj", "backbone.layers.25.mixer.out_proj",
               "backbone.layers.32.mixer.in_proj", "backbone.layers.32.mixer.out_proj",
               "backbone.layers.41.mixer.in_proj", "backbone.layers.41.mixer.out_proj",
               "backbone.layers.*.mixer.conv1d", "backbone.layers.*.mixer.gate",
               "backbone.layers.*.mixer.k_proj", "backbone.layers.*.mixer.o_proj",
               "backbone.layers.*.mixer.q_proj", "backbone.layers.*.mixer.v_proj", "lm_head"],
    "quant_algo": "NVFP4", "quant_method": "modelopt"
  })";

// NVIDIA's leaves what enters attention and delta nets in BF16; Qwen's FP8 the gates alone.
constexpr const char* kNextNvfp4 = R"(,
  "quantization_config": {
    "ignore": ["lm_head", "model.layers.*.linear_attn.conv1d", "model.layers.*.linear_attn.in_proj*",
               "model.layers.*.mlp.gate", "model.layers.*.mlp.shared_expert_gate",
               "model.layers.*.self_attn.k_proj", "model.layers.*.self_attn.q_proj",
               "model.layers.*.self_attn.v_proj", "mtp.layers.0*"],
    "quant_algo": "NVFP4", "quant_method": "modelopt"
  })";
constexpr const char* kNextFp8 = R"(,
  "quantization_config": {
    "activation_scheme": "dynamic", "fmt": "e4m3",
    "modules_to_not_convert": ["lm_head", "model.layers.*.linear_attn.conv1d",
                               "model.layers.*.linear_attn.in_proj_ba", "model.layers.*.mlp.gate",
                               "model.layers.*.mlp.shared_expert_gate"],
    "quant_method": "fp8", "weight_block_size": [128, 128]
  })";

// All linear layers but the head and, of experts, the router.
constexpr const char* kNvfp4 = R"(,
  "quantization_config": {
    "ignore": ["lm_head", "model.layers.*.mlp.gate"], "quant_algo": "NVFP4",
    "quant_method": "modelopt"
  })";
constexpr const char* kFp8 = R"(,
  "quantization_config": {
    "ignore": ["lm_head", "model.layers.*.mlp.gate"], "quant_algo": "FP8",
    "quant_method": "modelopt"
  })";
constexpr const char* kFp8Blocks = R"(,
  "quantization_config": {
    "activation_scheme": "dynamic", "fmt": "e4m3",
    "modules_to_not_convert": ["lm_head", "model.layers.*.mlp.gate"], "quant_method": "fp8",
    "weight_block_size": [128, 128]
  })";
constexpr const char* kPackedNvfp4 = R"(,
  "quantization_config": {
    "config_groups": {
      "group_0": {
        "targets": ["Linear"],
        "weights": {"group_size": 16, "num_bits": 4, "strategy": "tensor_group", "type": "float"}
      }
    },
    "format": "nvfp4-pack-quantized",
    "ignore": ["lm_head", "re:.*mlp.gate$"],
    "quant_method": "compressed-tensors"
  })";

struct Model {
  std::string_view repo_id;
  const char* config;
  const char* quantization = "";
};
constexpr Model kModels[] = {
    {"Qwen/Qwen3-8B", kQwen3_8B},
    {"Qwen/Qwen3-8B-FP8", kQwen3_8B, kFp8Blocks},
    {"nvidia/Qwen3-8B-FP8", kQwen3_8B, kFp8},
    {"nvidia/Qwen3-8B-NVFP4", kQwen3_8B, kNvfp4},
    {"Qwen/Qwen3-30B-A3B", kQwen3_30B},
    {"Qwen/Qwen3-30B-A3B-FP8", kQwen3_30B, kFp8Blocks},
    {"nvidia/Qwen3-30B-A3B-NVFP4", kQwen3_30B, kNvfp4},
    {"RedHatAI/Qwen3-30B-A3B-NVFP4", kQwen3_30B, kPackedNvfp4},
    {"Qwen/Qwen3-Next-80B-A3B-Instruct", kQwen3Next},
    {"Qwen/Qwen3-Next-80B-A3B-Thinking", kQwen3Next},
    {"Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", kQwen3Next, kNextFp8},
    {"Qwen/Qwen3-Next-80B-A3B-Thinking-FP8", kQwen3Next, kNextFp8},
    {"nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4", kQwen3Next, kNextNvfp4},
    {"nvidia/Qwen3-Next-80B-A3B-Thinking-NVFP4", kQwen3Next, kNextNvfp4},
    {"Qwen/Qwen3.5-35B-A3B", kQwen35_35B},
    {"nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", kNemotron3Nano},
    {"nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", kNemotron3Nano, kNanoNvfp4},
    {"meta-llama/Llama-3.1-8B", kLlama31_8B},
    {"meta-llama/Llama-3.1-8B-Instruct", kLlama31_8B},
    {"nvidia/Llama-3.1-8B-Instruct-FP8", kLlama31_8B, kFp8},
    {"nvidia/Llama-3.1-8B-Instruct-NVFP4", kLlama31_8B, kNvfp4},
};

}  // namespace

std::optional<Config> builtin_config(std::string_view repo_id) {
  const std::string origin = std::string(repo_id) + " (built in)";
  for (const GptOssSize& size : kGptOss)
    if (size.repo_id == repo_id) return Config::parse(gpt_oss_json(size), origin);
  for (const Model& model : kModels)
    if (model.repo_id == repo_id)
      return Config::parse("{" + std::string(model.config) + model.quantization + "}", origin);
  return std::nullopt;
}

}  // namespace nibble
