#include "models/gpt_oss_config.h"

#include "models/config_sizes.h"
#include "models/rope_config.h"

namespace nibble {
namespace {

void parse_layer_types(const Config& config, GptOssConfig& c) {
  if (!config.has("layer_types")) {  // as transformers fills it in
    for (int64_t l = 0; l < c.layers; ++l) c.sliding.push_back(l % 2 == 0);
  } else {
    const std::vector<std::string> types = config.texts("layer_types");
    if (static_cast<int64_t>(types.size()) != c.layers)
      config.fail("layer_types", "has " + std::to_string(types.size()) + " entries for " +
                                     std::to_string(c.layers) + " layers");
    for (const std::string& type : types) {
      if (type != "sliding_attention" && type != "full_attention")
        config.fail("layer_types",
                    "holds " + type + ", expected sliding_attention or full_attention");
      c.sliding.push_back(type == "sliding_attention");
    }
  }
  for (bool sliding : c.sliding)
    if (sliding) c.window = static_cast<int32_t>(config.integer("sliding_window", 1, 1 << 30));
}

// What the model code takes for granted.
void check_fixed_settings(const Config& config) {
  if (config.boolean_or("tie_word_embeddings", false))
    config.fail("tie_word_embeddings", "is true; gpt-oss has an output matrix of its own");
  if (!config.boolean_or("attention_bias", true))
    config.fail("attention_bias", "is false; gpt-oss has biases");
  if (const std::string act = config.text_or("hidden_act", "silu"); act != "silu")
    config.fail("hidden_act", "is " + act + ", expected silu (the clamped SwiGLU of gpt-oss)");
  if (config.number_or("swiglu_alpha", 1.702, -1e6, 1e6) != 1.702)
    config.fail("swiglu_alpha", "is not 1.702");
  if (const auto quantization = config.object("quantization_config"))
    if (const std::string method = quantization->text("quant_method"); method != "mxfp4")
      quantization->fail("quant_method", "is " + method + ", expected mxfp4");
}

ops::Rope parse_rope_of(const Config& config, const GptOssConfig& c) {
  if (config.has("rope_scaling") || config.has("rope_parameters"))
    return parse_rope(config, c.head_dim, c.max_positions, {"yarn", "default"});
  const ops::YarnParams yarn{.factor = 32,  // as transformers fills it in
                             .beta_fast = 32,
                             .beta_slow = 1,
                             .original_max_position = 4096,
                             .truncate = false};
  return ops::make_rope(static_cast<int>(c.head_dim), config.number("rope_theta", 1.001, 1e12),
                        yarn);
}

}  // namespace

GptOssConfig parse_gpt_oss_config(const Config& config) {
  check_fixed_settings(config);
  GptOssConfig c;
  c.layers = config.integer("num_hidden_layers", 1, 1000);
  c.hidden = config.integer("hidden_size", 32, kMaxDim);
  c.q_heads = config.integer("num_attention_heads", 1, 4096);
  c.kv_heads = config.integer("num_key_value_heads", 1, 4096);
  c.head_dim = config.integer_or("head_dim", c.hidden / c.q_heads, 2, 1024);
  c.experts = config.integer("num_local_experts", 1, 65536);
  const char* top_k =
      config.has("num_experts_per_tok") ? "num_experts_per_tok" : "experts_per_token";
  c.top_k = config.integer(top_k, 1, c.experts);
  c.width = config.integer("intermediate_size", 32, kMaxDim);
  c.vocab = config.integer("vocab_size", 1, 1 << 24);
  c.max_positions = config.integer("max_position_embeddings", 1, 1 << 30);
  c.norm_eps = static_cast<float>(config.number_or("rms_norm_eps", 1e-5, 0, 1));
  c.swiglu_limit = static_cast<float>(config.number_or("swiglu_limit", 7.0, 1e-3, 1e6));
  check_heads(config, c.q_heads, c.kv_heads, c.head_dim);
  if (c.hidden % 32 != 0) config.fail("hidden_size", "is not a multiple of 32, MXFP4's block");
  if (c.width % 32 != 0) config.fail("intermediate_size", "is not a multiple of 32, MXFP4's block");
  check_experts(config, "num_local_experts", c.experts * c.layers, 3 * c.width * c.hidden);
  parse_layer_types(config, c);
  c.rope = parse_rope_of(config, c);
  return c;
}

}  // namespace nibble
