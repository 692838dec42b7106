#include "models/nemotron_h_config.h"

#include "models/config_sizes.h"

namespace nibble {
namespace {

// hybrid_override_pattern, or a list of words in layers_block_type.
std::string parse_mixers(const Config& config) {
  std::string mixers = config.text_or("hybrid_override_pattern", "");
  const char* key = mixers.empty() ? "layers_block_type" : "hybrid_override_pattern";
  if (mixers.empty() && config.has(key))
    for (const std::string& word : config.texts(key))
      mixers += word == "linear_attention" || word == "mamba"     ? 'M'
                : word == "full_attention" || word == "attention" ? '*'
                : word == "moe"                                   ? 'E'
                : word == "mlp"                                   ? '-'
                                                                  : '?';
  if (mixers.empty())
    config.fail("hybrid_override_pattern",
                "is missing, and so is layers_block_type: nothing says what each layer is");
  if (mixers.find_first_not_of("M*E-") != std::string::npos)
    config.fail(key, "has layers of other kinds than Mamba2, attention, experts and MLPs");
  const int64_t layers = config.integer_or("num_hidden_layers", std::ssize(mixers), 1, 1000);
  if (std::ssize(mixers) != layers)
    config.fail(key, "has " + std::to_string(mixers.size()) + " layers; num_hidden_layers is " +
                         std::to_string(layers));
  if (std::ssize(mixers) > 1000) config.fail(key, "has more than 1,000 layers");
  return mixers;
}

void refuse_others(const Config& config) {
  for (const char* key :
       {"attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias", "tie_word_embeddings"})
    if (config.boolean_or(key, false))
      config.fail(key, "is true, which nibble's NemotronH does not have");
  if (!config.boolean_or("use_conv_bias", true))
    config.fail("use_conv_bias", "is false; nibble's NemotronH has it");
  if (const std::string act = config.text_or("mlp_hidden_act", "relu2"); act != "relu2")
    config.fail("mlp_hidden_act", "is " + act + ", expected relu2");
  if (const std::string act = config.text_or("mamba_hidden_act", "silu"); act != "silu")
    config.fail("mamba_hidden_act", "is " + act + ", expected silu");
  if (config.has("moe_latent_size"))
    config.fail("moe_latent_size", "is there; nibble's experts take the hidden size itself");
  if (config.has("sliding_window"))
    config.fail("sliding_window", "is there; nibble's NemotronH attends to all positions");
}

void parse_experts(const Config& config, NemotronHConfig& c) {
  c.experts = config.integer("n_routed_experts", 1, 4096);
  c.top_k = config.integer("num_experts_per_tok", 1, c.experts);
  c.expert_width = config.integer("moe_intermediate_size", 1, kMaxDim);
  c.shared_width = config.integer("moe_shared_expert_intermediate_size", 1, kMaxDim);
  if (config.integer_or("n_shared_experts", 1, 0, 64) != 1)
    config.fail("n_shared_experts", "is not 1; nibble's NemotronH has one");
  c.over_all = !config.boolean_or("norm_topk_prob", true);
  const int64_t groups = config.integer_or("n_group", 1, 1, 32),
                best = config.integer_or("topk_group", 1, 1, groups);
  if (c.experts % groups != 0) config.fail("n_group", "does not divide n_routed_experts");
  if (c.top_k > c.experts / groups * best)
    config.fail("num_experts_per_tok", "is more than topk_group groups have experts");
  c.sigmoid = {.is_used = true,
               .groups = static_cast<int32_t>(groups),
               .best_groups = static_cast<int32_t>(best),
               .scale = static_cast<float>(config.number_or("routed_scaling_factor", 1, 0, 1e6))};
  check_experts(config, "n_routed_experts", c.experts * c.layers(), 2 * c.expert_width * c.hidden);
}

}  // namespace

// time_step_limit, _min and _max are not asked: the models were trained without limits of dt.
NemotronHConfig parse_nemotron_h(const Config& config) {
  refuse_others(config);
  NemotronHConfig c;
  c.mixers = parse_mixers(config);
  c.hidden = config.integer("hidden_size", 1, kMaxDim);
  c.q_heads = config.integer("num_attention_heads", 1, 4096);
  c.kv_heads = config.integer("num_key_value_heads", 1, 4096);
  c.head_dim = config.integer("head_dim", 2, 1024);
  c.vocab = config.integer("vocab_size", 1, 1 << 24);
  c.max_positions = config.integer("max_position_embeddings", 1, 1 << 30);
  c.norm_eps = static_cast<float>(config.number_or("layer_norm_epsilon", 1e-5, 0, 1));
  check_heads(config, c.q_heads, c.kv_heads, c.head_dim);
  c.mamba = {.heads = config.integer("mamba_num_heads", 1, 4096),
             .groups = config.integer("n_groups", 1, 4096),
             .head_dim = config.integer("mamba_head_dim", 1, 1024),
             .state_dim = config.integer("ssm_state_size", 1, 1024),
             .taps = config.integer("conv_kernel", 2, 64)};
  if (c.mamba.heads % c.mamba.groups != 0)
    config.fail("mamba_num_heads", "is not a multiple of n_groups");
  if (c.has('-')) c.width = config.integer("intermediate_size", 1, kMaxDim);
  if (c.has('E')) parse_experts(config, c);
  c.rope.inv_freq.assign(c.head_dim / 2, 0);
  return c;
}

MambaCuts::MambaCuts(const ops::Mamba2Desc& all, const Shard& shard)
    : here(all), channels(all.channels()), inputs(all.width()) {
  if (shard.size > all.groups)
    throw Error(ErrorKind::kUnsupported,
                "--tensor-parallel-size " + std::to_string(shard.size) + ": " +
                    std::to_string(all.groups) +
                    " groups of Mamba2 heads are fewer than the ranks; say a smaller size");
  const Cut groups = cut_units(all.groups, 1, shard);
  heads = groups.times(all.group_heads());
  here.heads = heads.size, here.groups = groups.size;
  const auto at = [](int64_t n, int64_t begin, const Cut& of) {
    return Cut(n, begin + of.begin, of.size);
  };
  const Cut inner = heads.times(all.head_dim), states = groups.times(all.state_dim);
  const int64_t n = all.channels(), width = all.width();
  channels = {at(n, 0, inner), at(n, all.b(), states), at(n, all.c(), states)};
  inputs = {at(width, 0, inner), at(width, all.inner(), inner),
            at(width, all.inner() + all.b(), states), at(width, all.inner() + all.c(), states),
            at(width, all.dt(), heads)};
}

}  // namespace nibble
