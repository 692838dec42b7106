// For tests: gpt-oss checkpoints of any shape with random weights, none of them zero: biases, norms
// and sinks count, and MXFP4 blocks of one row lie up to five exponents apart.
#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "io/checkpoint.h"
#include "models/model.h"

namespace nibble {

struct RandomShape {
  int64_t layers = 2, hidden = 64, width = 64;
  int64_t q_heads = 4, kv_heads = 2, head_dim = 16;
  int64_t experts = 4, top_k = 2, vocab = 96, window = 5;
  uint64_t seed = 0;
};

inline std::string random_config(const RandomShape& s) {
  const auto key = [](const char* name, int64_t value) {
    return ", \"" + std::string(name) + "\": " + std::to_string(value);
  };
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

// Writes config.json and model.safetensors to `directory`.
inline void write_random_checkpoint(const RandomShape& shape,
                                    const std::filesystem::path& directory) {
  std::ofstream(directory / "config.json") << random_config(shape);
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
    const float mean = spec.fill == Fill::kOne ? 1 : 0;
    add(spec.name, DType::kBF16, spec.shape,
        [&] { return bf16_from_float(mean + deviation * normal(random)); });
  }
  write_safetensors(directory / "model.safetensors", tensors);
}

}  // namespace nibble
