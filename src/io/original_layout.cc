#include "io/original_layout.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace nibble {
namespace {

using nlohmann::json;

struct NamePair {
  std::string_view original;
  std::string_view hugging_face;
};

constexpr NamePair kTopNames[] = {
    {"embedding.weight", "model.embed_tokens.weight"},
    {"unembedding.weight", "lm_head.weight"},
    {"norm.scale", "model.norm.weight"},
};

constexpr NamePair kBlockNames[] = {
    {"attn.norm.scale", "input_layernorm.weight"},
    {"attn.out.weight", "self_attn.o_proj.weight"},
    {"attn.out.bias", "self_attn.o_proj.bias"},
    {"attn.sinks", "self_attn.sinks"},
    {"mlp.norm.scale", "post_attention_layernorm.weight"},
    {"mlp.gate.weight", "mlp.router.weight"},
    {"mlp.gate.bias", "mlp.router.bias"},
    {"mlp.mlp1_weight.blocks", "mlp.experts.gate_up_proj_blocks"},
    {"mlp.mlp1_weight.scales", "mlp.experts.gate_up_proj_scales"},
    {"mlp.mlp1_bias", "mlp.experts.gate_up_proj_bias"},
    {"mlp.mlp2_weight.blocks", "mlp.experts.down_proj_blocks"},
    {"mlp.mlp2_weight.scales", "mlp.experts.down_proj_scales"},
    {"mlp.mlp2_bias", "mlp.experts.down_proj_bias"},
};

// "block.7.attn.sinks" -> "7" and "attn.sinks"; empty where the name has another form.
struct BlockName {
  std::string_view number;
  std::string_view rest;
};

BlockName split_block_name(std::string_view name) {
  constexpr std::string_view kBlock = "block.";
  if (!name.starts_with(kBlock)) return {};
  name.remove_prefix(kBlock.size());
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot > 4) return {};
  if (name.substr(0, dot).find_first_not_of("0123456789") != std::string_view::npos) return {};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

std::vector<TensorInfo> split_qkv(const TensorInfo& fused, const std::string& prefix,
                                  std::string_view kind, int64_t q_rows, const std::string& file) {
  const int64_t rows = fused.shape.empty() ? 0 : fused.shape[0];
  if (q_rows <= 0 || rows <= q_rows || (rows - q_rows) % 2 != 0)
    throw Error(ErrorKind::kCheckpoint,
                file + ": tensor \"" + fused.name + "\": " + std::to_string(rows) +
                    " rows cannot be " + std::to_string(q_rows) +
                    " of q (the columns of attn.out) and equal shares of k and v");
  const int64_t kv_rows = (rows - q_rows) / 2;
  const int64_t row_bytes = fused.bytes / rows;
  std::vector<TensorInfo> parts;
  int64_t row = 0;
  for (const auto& [letter, count] : {std::pair{'q', q_rows}, {'k', kv_rows}, {'v', kv_rows}}) {
    TensorInfo part = fused;
    part.name = prefix + "self_attn." + letter + "_proj." + std::string(kind);
    part.shape[0] = count;
    part.bytes = count * row_bytes;
    part.offset = fused.offset + row * row_bytes;
    row += count;
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace

bool is_original_config(const Config& config) {
  return !config.has("model_type") && config.has("num_experts") && config.has("rope_ntk_beta");
}

Config from_original_config(const Config& config) {
  json j = json::parse(config.dump());
  const auto rename = [&](const char* from, const char* to) {
    if (j.contains(from)) j[to] = j[from];
    j.erase(from);
  };
  rename("num_experts", "num_local_experts");
  rename("experts_per_token", "num_experts_per_tok");
  const double context = config.number("initial_context_length", 1, 1e9);
  const double factor = config.number("rope_scaling_factor", 1, 1e6);
  j["rope_parameters"] = {{"rope_type", "yarn"},
                          {"rope_theta", config.number("rope_theta", 1e-3, 1e12)},
                          {"factor", factor},
                          {"beta_fast", config.number("rope_ntk_beta", 1e-3, 1e6)},
                          {"beta_slow", config.number("rope_ntk_alpha", 1e-3, 1e6)},
                          {"original_max_position_embeddings", static_cast<int64_t>(context)},
                          {"truncate", false}};
  for (const char* key : {"rope_theta", "rope_scaling_factor", "rope_ntk_alpha", "rope_ntk_beta"})
    j.erase(key);
  j["max_position_embeddings"] = static_cast<int64_t>(context * factor);
  j["model_type"] = "gpt_oss";
  j["architectures"] = {"GptOssForCausalLM"};
  j["attention_bias"] = true;
  j["hidden_act"] = "silu";
  j["rms_norm_eps"] = 1e-5;
  j["tie_word_embeddings"] = false;
  json& layers = j["layer_types"] = json::array();
  for (int64_t l = 0; l < config.integer("num_hidden_layers", 1, 10000); ++l)
    layers.push_back(l % 2 == 0 ? "sliding_attention" : "full_attention");
  j["quantization_config"] = {
      {"quant_method", "mxfp4"},
      {"modules_to_not_convert",
       {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}}};
  return Config::parse(j.dump(), config.origin());
}

bool is_original_name(std::string_view name) {
  for (const NamePair& pair : kTopNames)
    if (pair.original == name) return true;
  return !split_block_name(name).number.empty();
}

std::vector<TensorInfo> from_original_tensor(const TensorInfo& tensor, int64_t q_rows,
                                             const std::string& file) {
  TensorInfo renamed = tensor;
  for (const NamePair& pair : kTopNames) {
    if (pair.original != tensor.name) continue;
    renamed.name = pair.hugging_face;
    return {renamed};
  }
  const BlockName block = split_block_name(tensor.name);
  const std::string prefix = "model.layers." + std::string(block.number) + ".";
  if (block.rest == "attn.qkv.weight") return split_qkv(tensor, prefix, "weight", q_rows, file);
  if (block.rest == "attn.qkv.bias") return split_qkv(tensor, prefix, "bias", q_rows, file);
  for (const NamePair& pair : kBlockNames) {
    if (pair.original != block.rest) continue;
    renamed.name = prefix + std::string(pair.hugging_face);
    return {renamed};
  }
  throw Error(ErrorKind::kCheckpoint,
              file + ": tensor \"" + tensor.name + "\": not a name of the original gpt-oss layout");
}

}  // namespace nibble
