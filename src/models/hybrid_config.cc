#include "models/hybrid_config.h"

#include <cmath>
#include <utility>

#include "formats/layout.h"
#include "models/config_sizes.h"
#include "models/rope_config.h"

namespace nibble {

std::vector<bool> parse_recurrent_layers(const Config& config) {
  const int64_t layers = config.integer("num_hidden_layers", 1, 1000);
  std::vector<bool> by_types, by_interval;
  if (config.has("layer_types"))
    for (const std::string& type : config.texts("layer_types")) {
      if (type != "linear_attention" && type != "full_attention")
        config.fail("layer_types", "has " + type + ", expected linear_attention or full_attention");
      by_types.push_back(type == "linear_attention");
    }
  if (config.has("full_attention_interval")) {
    const int64_t interval = config.integer("full_attention_interval", 1, 1000);
    for (int64_t l = 1; l <= layers; ++l) by_interval.push_back(l % interval != 0);
  }
  if (by_types.empty() && by_interval.empty())
    config.fail("layer_types",
                "is missing, and so is full_attention_interval: nothing says which "
                "layers are recurrent");
  if (!by_types.empty() && std::ssize(by_types) != layers)
    config.fail("layer_types", "has " + std::to_string(by_types.size()) +
                                   " entries; num_hidden_layers is " + std::to_string(layers));
  if (!by_types.empty() && !by_interval.empty() && by_types != by_interval)
    config.fail("layer_types", "disagrees with full_attention_interval");
  return by_types.empty() ? by_interval : by_types;
}

ops::DeltaRuleDesc parse_delta_rule(const Config& config, ops::DeltaInputs inputs) {
  const ops::DeltaRuleDesc d{.key_heads = config.integer("linear_num_key_heads", 1, 4096),
                             .value_heads = config.integer("linear_num_value_heads", 1, 4096),
                             .key_dim = config.integer("linear_key_head_dim", 1, 1024),
                             .value_dim = config.integer("linear_value_head_dim", 1, 1024),
                             .taps = config.integer("linear_conv_kernel_dim", 2, 64),
                             .inputs = inputs};
  if (d.value_heads % d.key_heads != 0)
    config.fail("linear_num_value_heads", "is not a multiple of linear_num_key_heads");
  return d;
}

RecurrentShape recurrent_shape(const ops::DeltaRuleDesc& d) {
  return {.heads = static_cast<int32_t>(d.value_heads),
          .key_dim = static_cast<int32_t>(d.key_dim),
          .value_dim = static_cast<int32_t>(d.value_dim),
          .channels = static_cast<int32_t>(d.channels()),
          .taps = static_cast<int32_t>(d.taps)};
}

DeltaCuts::DeltaCuts(const ops::DeltaRuleDesc& all, const Shard& shard, bool joins)
    : here(all), channels(all.channels()), inputs(0), gates(0) {
  const auto [value_heads, key_heads] = cut_heads(all.value_heads, all.key_heads, shard);
  here.key_heads = key_heads.size, here.value_heads = value_heads.size;
  // Layouts take each tensor by whole groups of rows.
  here.joined = joins && !shard.is_split() && here.value_heads % kGroupRows == 0;
  heads = value_heads, values = value_heads.times(all.value_dim);
  const auto at = [](int64_t n, int64_t begin, const Cut& of) {
    return Cut(n, begin + of.begin, of.size);
  };
  const Cut keys = key_heads.times(all.key_dim);
  channels = {at(all.channels(), 0, keys), at(all.channels(), all.key_width(), keys),
              at(all.channels(), 2 * all.key_width(), values)};
  inputs = channels;
  if (all.inputs == ops::DeltaInputs::kInOrder) return;
  const int64_t ratio = all.value_heads / all.key_heads, served = ratio * all.value_dim;
  inputs = key_heads.times(2 * all.key_dim + 2 * served);
  gates = key_heads.times(2 * ratio);
  if (key_heads.size > 1) return;
  // A part of one key head's: v and z, b and a of its own value heads.
  const int64_t key_head = key_heads.begin, first = value_heads.begin - key_head * ratio;
  const ops::DeltaPlaces head = ops::delta_places(all, key_head);
  const Cut own(served, first * all.value_dim, values.size), own_heads(ratio, first, heads.size);
  inputs = {Cut(all.width(), head.q, 2 * all.key_dim), at(all.width(), head.v, own),
            at(all.width(), head.z, own)};
  gates = {at(2 * all.value_heads, head.b, own_heads), at(2 * all.value_heads, head.a, own_heads)};
}

void check_gated_attention(const Config& config) {
  if (const std::string act = config.text_or("hidden_act", "silu"); act != "silu")
    config.fail("hidden_act", "is " + act + ", expected silu");
  if (config.boolean_or("attention_bias", false))
    config.fail("attention_bias", "is true; nibble's gated attention has no biases");
  if (!config.boolean_or("attn_output_gate", true))
    config.fail("attn_output_gate", "is false; nibble's gated attention has a gate");
  if (const std::string gate = config.text_or("output_gate_type", "swish");
      gate != "swish" && gate != "silu")
    config.fail("output_gate_type", "is " + gate + ", expected swish");
}

TextConfig::TextConfig(const Config& all)
    : config(all.object("text_config").value_or(all)),
      prefix(all.has("text_config") ? "model.language_model." : "model."),
      is_tied(
          all.boolean_or("tie_word_embeddings", config.boolean_or("tie_word_embeddings", false))) {}

int64_t parse_rotary_dim(const Config& config, int64_t head_dim) {
  const Config rope = rope_parameters(config);
  constexpr const char* kKey = "partial_rotary_factor";
  const Config& where = rope.has(kKey) ? rope : config;
  const double dims = static_cast<double>(head_dim) * where.number(kKey, 0, 1);
  const auto whole = static_cast<int64_t>(dims);
  if (whole < 2 || whole % 2 != 0)
    where.fail(kKey, "turns " + std::to_string(whole) + " dims of a head; they turn by pairs");
  return whole;
}

HybridConfig parse_hybrid(const TextConfig& text, std::string architecture,
                          ops::DeltaInputs inputs) {
  const Config& config = text.config;
  check_gated_attention(config);
  HybridConfig c;
  c.architecture = std::move(architecture);
  c.prefix = text.prefix;
  c.is_tied = text.is_tied;
  c.is_recurrent = parse_recurrent_layers(config);
  c.hidden = config.integer("hidden_size", 1, kMaxDim);
  c.q_heads = config.integer("num_attention_heads", 1, 4096);
  c.kv_heads = config.integer("num_key_value_heads", 1, 4096);
  c.head_dim = config.integer("head_dim", 2, 1024);
  c.vocab = config.integer("vocab_size", 1, 1 << 24);
  c.max_positions = config.integer("max_position_embeddings", 1, 1 << 30);
  c.norm_eps = static_cast<float>(config.number_or("rms_norm_eps", 1e-6, 0, 1));
  c.delta = parse_delta_rule(config, inputs);
  check_heads(config, c.q_heads, c.kv_heads, c.head_dim);
  c.rope = parse_rope(config, parse_rotary_dim(config, c.head_dim), c.max_positions,
                      {"default", "yarn"});
  return c;
}

}  // namespace nibble
