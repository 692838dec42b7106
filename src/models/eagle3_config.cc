#include "models/eagle3_config.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "models/config_sizes.h"
#include "models/rope_config.h"

namespace nibble {
namespace {

constexpr double kUsualTheta = 10000;  // of a Llama config that says none
constexpr const char* kIds = "eagle_aux_hidden_state_layer_ids";

// The layers whose entering rows are read. An id of SpecForge and ModelOpt (in eagle_config) is a
// layer's output, the first being 0; one of speculators counts the layers behind it, 0 being the
// embedding. Without any they mean the same three.
std::vector<int32_t> parse_layers(const Config& config, bool is_speculators, int32_t num_layers) {
  std::vector<int32_t> layers = {2, num_layers / 2, num_layers - 3};
  const std::optional<Config> eagle = config.object("eagle_config");
  const Config& where = eagle && eagle->has(kIds) ? *eagle : config;
  // An empty list is none: ModelOpt's default.
  if (const auto ids =
          where.has(kIds) ? where.integers(kIds, 0, num_layers) : std::vector<int64_t>{};
      !ids.empty()) {
    layers.clear();
    for (const int64_t id : ids)
      layers.push_back(static_cast<int32_t>(id) + (is_speculators ? 0 : 1));
  }
  if (!std::ranges::is_sorted(layers, std::less_equal{}))
    where.fail(kIds, "must rise, for a model of " + std::to_string(num_layers) + " layers");
  if (layers.empty() || layers.size() > 3 || layers.front() < 0 || layers.back() >= num_layers)
    where.fail(kIds, "names no layers before the last of the model, which has " +
                         std::to_string(num_layers) + "; was the head made for another?");
  return layers;
}

// What ModelOpt's heads say of themselves beside their sizes; null is as if it were not there.
void refuse_modelopts(const Config& said) {
  if (!said.boolean_or("use_aux_hidden_state", true))
    said.fail("use_aux_hidden_state", "is false; nibble runs heads that read hidden rows");
  if (said.boolean_or("use_mtp_layernorm", false))
    said.fail("use_mtp_layernorm", "is true; nibble's heads have no such norm");
  if (said.integer_or("parallel_draft_step", 1, 1, 1000) != 1)
    said.fail("parallel_draft_step", "is not 1; nibble makes drafts one after the other");
}

void refuse_variants(const Config& config) {
  if (const std::string act = config.text_or("hidden_act", "silu"); act != "silu")
    config.fail("hidden_act", "is " + act + ", expected silu");
  if (config.boolean_or("mlp_bias", false)) config.fail("mlp_bias", "is true; nibble has none");
  if (config.integer_or("num_hidden_layers", 1, 1, 1000) != 1)
    config.fail("num_hidden_layers", "is not 1; nibble runs heads of one layer");
}

}  // namespace

Eagle3Config parse_eagle3_config(const Config& config, int32_t target_layers) {
  const bool is_speculators = config.has("speculators_model_type");
  if (is_speculators && config.text("speculators_model_type") != "eagle3")
    config.fail("speculators_model_type",
                "is " + config.text("speculators_model_type") + ", expected eagle3");
  const std::optional<Config> inner = config.object("transformer_layer_config");
  if (is_speculators && !inner) config.fail("transformer_layer_config", "is missing");
  const Config& layer = is_speculators ? *inner : config;
  refuse_variants(layer);
  const std::optional<Config> eagle = config.object("eagle_config");
  const Config& said = eagle ? *eagle : config;
  refuse_modelopts(said);

  Eagle3Config c;
  c.hidden = layer.integer("hidden_size", 1, kMaxDim);
  c.target_hidden = config.integer_or("target_hidden_size", c.hidden, 1, kMaxDim);
  c.q_heads = layer.integer("num_attention_heads", 1, 4096);
  c.kv_heads = layer.integer_or("num_key_value_heads", c.q_heads, 1, 4096);
  c.head_dim = layer.integer_or("head_dim", c.hidden / c.q_heads, 2, 1024);
  c.width = layer.integer("intermediate_size", 1, kMaxDim);
  c.target_vocab = layer.integer("vocab_size", 1, 1 << 24);
  c.vocab = config.integer_or("draft_vocab_size", c.target_vocab, 1, c.target_vocab);
  c.norm_eps = static_cast<float>(layer.number_or("rms_norm_eps", 1e-6, 0, 1));
  c.has_bias = layer.boolean_or("attention_bias", false);
  // What speculators leave out is true.
  c.norm_before_residual = said.boolean_or(
      "norm_before_residual", config.boolean_or("norm_before_residual", is_speculators));
  c.norm_before_fc = said.boolean_or("norm_before_fc", config.boolean_or("norm_before_fc", false));
  c.norm_output = said.boolean_or("norm_output", config.boolean_or("norm_output", false));
  if (c.q_heads % c.kv_heads != 0)
    layer.fail("num_attention_heads", "is not a multiple of num_key_value_heads");
  if (!layer.has("head_dim") && c.hidden % c.q_heads != 0)
    layer.fail("hidden_size", "is not a multiple of num_attention_heads, and head_dim is missing");
  if (c.head_dim % 2 != 0) layer.fail("head_dim", "is odd; rotary embeddings need pairs");
  c.target_layers = parse_layers(config, is_speculators, target_layers);
  const bool says_theta =
      layer.has("rope_theta") || layer.has("rope_parameters") || layer.has("rope_scaling");
  c.rope = says_theta ? parse_rope(layer, c.head_dim,
                                   layer.integer_or("max_position_embeddings", 4096, 1, 1 << 30),
                                   {"default", "llama3", "yarn"})
                      : ops::make_rope(static_cast<int>(c.head_dim), kUsualTheta, std::nullopt);
  return c;
}

}  // namespace nibble
