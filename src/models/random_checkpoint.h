// For tests: checkpoints of any model and shape with random weights, none of them zero: biases,
// norms and sinks count, and MXFP4 blocks of one row lie up to five exponents apart.
#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "formats/fp8.h"
#include "io/checkpoint.h"
#include "models/model.h"

namespace nibble {

enum class Family {
  kGptOss,
  kLlama,
  kQwen3,
  kQwen3Moe,
  kQwen3Next,
  kQwen35,
  kQwen35Moe,
  kNemotronH
};
constexpr bool is_hybrid(Family family) { return family >= Family::kQwen3Next; }

struct RandomShape {
  Family family = Family::kGptOss;
  int64_t layers = 2, hidden = 64, width = 64;
  int64_t q_heads = 4, kv_heads = 2, head_dim = 16;
  int64_t experts = 4, top_k = 2, vocab = 96, window = 5;
  uint64_t seed = 0;
  // Of families other than gpt-oss.
  Format format = Format::kBF16;  // of linear layers on disk
  bool is_tied = false, over_all = false;
  // Of those with delta nets, in every layer but the last; heads turn by a half. Of NemotronH,
  // which has a layer of each kind: groups, heads, rows and columns of a state.
  int64_t key_heads = 1, value_heads = 2, key_dim = 16, value_dim = 16, taps = 4;
  int64_t shared_width = 0;  // of the shared expert; 0: as the others
};

inline std::string config_key(const char* name, int64_t value) {
  return ", \"" + std::string(name) + "\": " + std::to_string(value);
}

// What says `format`, if anything does.
inline std::string random_quantization(Format format) {
  const auto by_modelopt = [](const char* algorithm) {
    return std::string(
               R"(, "quantization_config": {"quant_method": "modelopt", "ignore": ["lm_head"],)") +
           R"( "quant_algo": ")" + algorithm + "\"}";
  };
  if (format == Format::kNvfp4) return by_modelopt("NVFP4");
  if (format == Format::kFp8Row) return by_modelopt("FP8");
  if (format == Format::kMxfp8) return by_modelopt("MXFP8");
  if (format == Format::kMxfp4) return by_modelopt("MXFP4");
  if (format == Format::kFp8Block)
    return R"(, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]})";
  if (format == Format::kInt4G32)
    return R"(, "quantization_config": {"quant_method": "compressed-tensors",
        "format": "pack-quantized", "ignore": ["lm_head"], "config_groups": {"all": {
        "targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32}}}})";
  return "";
}

inline std::string random_hybrid_config(const RandomShape& s) {
  std::string types;
  for (int64_t l = 0; l < s.layers; ++l)
    types += l + 1 < s.layers ? "\"linear_attention\", " : "\"full_attention\"";
  return ", \"partial_rotary_factor\": 0.5, \"layer_types\": [" + types + "]" +
         config_key("linear_num_key_heads", s.key_heads) +
         config_key("linear_num_value_heads", s.value_heads) +
         config_key("linear_key_head_dim", s.key_dim) +
         config_key("linear_value_head_dim", s.value_dim) +
         config_key("linear_conv_kernel_dim", s.taps) +
         config_key("shared_expert_intermediate_size",
                    s.shared_width > 0 ? s.shared_width : s.width);
}

inline std::string random_nemotron_config(const RandomShape& s) {
  return R"({"architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "ME*-M")" +
         config_key("hidden_size", s.hidden) + config_key("num_attention_heads", s.q_heads) +
         config_key("num_key_value_heads", s.kv_heads) + config_key("head_dim", s.head_dim) +
         config_key("mamba_num_heads", s.value_heads) + config_key("n_groups", s.key_heads) +
         config_key("mamba_head_dim", s.value_dim) + config_key("ssm_state_size", s.key_dim) +
         config_key("conv_kernel", s.taps) + config_key("intermediate_size", s.width) +
         config_key("n_routed_experts", s.experts) + config_key("num_experts_per_tok", s.top_k) +
         config_key("moe_intermediate_size", s.width) +
         config_key("moe_shared_expert_intermediate_size",
                    s.shared_width > 0 ? s.shared_width : s.width) +
         config_key("vocab_size", s.vocab) + config_key("max_position_embeddings", 4096) +
         random_quantization(s.format) + "}";
}

inline std::string random_family_config(const RandomShape& s) {
  if (s.family == Family::kNemotronH) return random_nemotron_config(s);
  constexpr const char* kNames[] = {
      "GptOssForCausalLM",    "LlamaForCausalLM",   "Qwen3ForCausalLM",     "Qwen3MoeForCausalLM",
      "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"};
  const char* name = kNames[static_cast<int>(s.family)];
  const auto flag = [](bool value) { return std::string(value ? "true" : "false"); };
  std::string text =
      std::string("{\"architectures\": [\"") + name + "\"]" +
      config_key("num_hidden_layers", s.layers) + config_key("hidden_size", s.hidden) +
      config_key("intermediate_size", s.width) + config_key("num_attention_heads", s.q_heads) +
      config_key("num_key_value_heads", s.kv_heads) + config_key("head_dim", s.head_dim) +
      config_key("vocab_size", s.vocab) + config_key("max_position_embeddings", 4096) +
      config_key("rope_theta", 10000) +
      ", \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": " + flag(s.is_tied);
  if (s.family == Family::kLlama)
    text += R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
        "high_freq_factor": 4, "original_max_position_embeddings": 64}, "attention_bias": )" +
            flag(s.over_all);
  if (is_hybrid(s.family)) text += random_hybrid_config(s);
  if (s.family == Family::kQwen3Moe || s.family == Family::kQwen3Next ||
      s.family == Family::kQwen35Moe)
    text += config_key("num_experts", s.experts) + config_key("num_experts_per_tok", s.top_k) +
            config_key("moe_intermediate_size", s.width) +
            ", \"norm_topk_prob\": " + flag(!s.over_all);
  return text + random_quantization(s.format) + "}";
}

inline std::string random_config(const RandomShape& s) {
  if (s.family != Family::kGptOss) return random_family_config(s);
  const auto key = config_key;
  std::string types;
  for (int64_t l = 0; l < s.layers; ++l)
    types += std::string(l == 0 ? "" : ", ") +
             (l % 2 == 0 ? "\"sliding_attention\"" : "\"full_attention\"");
  return "{\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\"" +
         key("num_hidden_layers", s.layers) + key("hidden_size", s.hidden) +
         key("intermediate_size", s.width) + key("num_attention_heads", s.q_heads) +
         key("num_key_value_heads", s.kv_heads) + key("head_dim", s.head_dim) +
         key("num_local_experts", s.experts) + key("num_experts_per_tok", s.top_k) +
         key("vocab_size", s.vocab) + key("sliding_window", s.window) +
         key("max_position_embeddings", 4096) + key("rope_theta", 10000) + ", \"layer_types\": [" +
         types +
         "], \"rms_norm_eps\": 1e-5, \"swiglu_limit\": 7.0, \"hidden_act\": \"silu\", "
         "\"attention_bias\": true, \"tie_word_embeddings\": false, \"quantization_config\": "
         "{\"quant_method\": \"mxfp4\"}}";
}

// The tensors that a matrix [N, K] of `format` is made of, as list_weights() reads them: values of
// about `deviation`. add(part, dtype, shape, make), in place of ".weight" of its name.
template <typename Add>
void add_random_matrix(std::mt19937& random, Format format, int64_t n, int64_t k, float deviation,
                       const Add& add) {
  std::normal_distribution<float> normal;
  const auto byte = [&] { return static_cast<uint8_t>(random() >> 24); };
  const auto e4m3 = [&] { return e4m3_from_float(16 * normal(random)); };
  const auto scale_of = [&](float unit) {
    return [&random, unit] { return unit * (0.5f + 0.1f * static_cast<float>(random() % 10)); };
  };
  const std::vector<int64_t> blocks = {(n + 127) / 128, (k + 127) / 128};
  switch (format) {
    case Format::kNvfp4: {
      const bool is_packed = random() % 2 == 0;  // compressed-tensors' dialect
      const float unit = deviation / 8;
      add(is_packed ? ".weight_packed" : ".weight", DType::kU8, {n, k / 2}, byte);
      add(".weight_scale", DType::kF8E4M3, {n, k / 16},
          [&] { return static_cast<uint8_t>(0x34 + random() % 16); });
      if (is_packed) return add(".weight_global_scale", DType::kF32, {1}, scale_of(1 / unit));
      return add(".weight_scale_2", DType::kF32, {}, scale_of(unit));
    }
    case Format::kFp8Row:
      add(".weight", DType::kF8E4M3, {n, k}, e4m3);
      return add(".weight_scale", DType::kF32, {n, 1}, scale_of(deviation / 16));
    case Format::kFp8Block:
      add(".weight", DType::kF8E4M3, {n, k}, e4m3);
      return add(".weight_scale_inv", DType::kF32, blocks, scale_of(deviation / 16));
    case Format::kMxfp8:
      add(".weight", DType::kF8E4M3, {n, k}, e4m3);
      return add(".weight_scale", DType::kU8, {n, k / 32}, [&] {
        return static_cast<uint8_t>(127 + std::ilogb(deviation / 16) - 1 + random() % 3);
      });
    default:
      add(".weight_packed", DType::kI32, {n, k / 8},
          [&] { return static_cast<int32_t>(random()); });
      return add(".weight_scale", DType::kBF16, {n, k / 32},
                 [&] { return bf16_from_float(scale_of(deviation / 5)()); });
  }
}

// Writes config.json and model.safetensors to `directory`.
inline void write_random_checkpoint(const RandomShape& shape,
                                    const std::filesystem::path& directory,
                                    const std::string& config) {
  std::ofstream(directory / "config.json") << config;
  std::mt19937 random(static_cast<uint32_t>(shape.seed));
  std::normal_distribution<float> normal;
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorData> tensors;
  const auto add = [&](const std::string& name, DType dtype, std::vector<int64_t> dims,
                       const auto& make) {
    using Value = decltype(make());
    int64_t n = 1;
    for (const int64_t d : dims) n *= d;
    std::vector<std::byte>& bytes = memory.emplace_back(n * sizeof(Value));
    for (int64_t i = 0; i < n; ++i) {
      const Value value = make();
      std::memcpy(bytes.data() + i * sizeof(Value), &value, sizeof(Value));
    }
    tensors.push_back({name, dtype, std::move(dims), bytes});
  };
  for (const WeightSpec& spec : list_wanted_weights((directory / "config.json").string())) {
    const auto deviation = static_cast<float>(spec.fill == Fill::kZero  ? 0.3
                                              : spec.fill == Fill::kOne ? 0.2
                                                                        : dummy_deviation(spec));
    if (spec.format == Format::kMxfp4) {
      std::vector<int64_t> dims = spec.shape;
      dims.back() /= 32;
      const uint32_t spread = shape.seed % 3 == 0 ? 6 : 2;
      const auto middle = static_cast<uint32_t>(127 + std::ilogb(deviation) - 1 - spread / 2);
      add(spec.name + "_scales", DType::kU8, dims,
          [&] { return static_cast<uint8_t>(middle + random() % spread); });
      dims.push_back(16);
      add(spec.name + "_blocks", DType::kU8, dims,
          [&] { return static_cast<uint8_t>(random() >> 24); });
      continue;
    }
    if (spec.format != Format::kBF16) {
      const std::string base = spec.name.substr(0, spec.name.rfind('.'));
      add_random_matrix(random, spec.format, spec.shape[0], spec.shape[1], deviation,
                        [&](const char* part, DType dtype, std::vector<int64_t> dims,
                            const auto& make) { add(base + part, dtype, std::move(dims), make); });
      continue;
    }
    const float mean = spec.fill == Fill::kOne ? 1 : 0;
    if (shape.format == Format::kF16 && spec.shape.size() > 1) {
      add(spec.name, DType::kF16, spec.shape, [&] {  // exponents 7 to 10: 2^-8 to 2^-4
        return static_cast<uint16_t>((random() & 0x83ff) | (7 + random() % 4) << 10);
      });
      continue;
    }
    if (shape.format == Format::kF32 && spec.shape.size() > 1) {
      add(spec.name, DType::kF32, spec.shape, [&] { return mean + deviation * normal(random); });
      continue;
    }
    add(spec.name, DType::kBF16, spec.shape,
        [&] { return bf16_from_float(mean + deviation * normal(random)); });
  }
  write_safetensors(directory / "model.safetensors", tensors);
}
inline void write_random_checkpoint(const RandomShape& shape,
                                    const std::filesystem::path& directory) {
  write_random_checkpoint(shape, directory, random_config(shape));
}

}  // namespace nibble
