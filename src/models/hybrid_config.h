// What config.json says of models some of whose layers are recurrent.
#pragma once

#include <string>
#include <vector>

#include "io/config.h"
#include "models/loaded_weights.h"
#include "models/model.h"
#include "models/shard.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/rope/rope.h"

namespace nibble {

// Whether each layer is recurrent ("linear_attention" in layer_types) or attends to all positions:
// layer_types, or every full_attention_interval-th does. Throws Error(kCheckpoint) where neither is
// there, or both and they disagree.
std::vector<bool> parse_recurrent_layers(const Config& config);

// Of its gated delta nets: linear_num_key_heads and its like.
ops::DeltaRuleDesc parse_delta_rule(const Config& config, ops::DeltaInputs inputs);
RecurrentShape recurrent_shape(const ops::DeltaRuleDesc& delta);

// What a rank has of a delta net: whole key heads with the value heads that they serve; where ranks
// are more, a key head is on several, each with a part of those.
struct DeltaCuts {
  // joins: on one rank the gates may be further rows of the inputs, by whole groups of a layout.
  DeltaCuts(const ops::DeltaRuleDesc& all, const Shard& shard, bool joins = false);
  ops::DeltaRuleDesc here;
  Cut heads;      // value heads
  Cut values;     // their columns
  Cuts channels;  // of the convolution: q, k, v
  Cuts inputs;    // rows of in_proj_qkvz where they lie by key head, else of in_proj_qkv
  Cuts gates;     // rows of in_proj_ba, of the former alone
};

// Refuses what gated attention and delta nets are not: other activations, biases, no gate.
void check_gated_attention(const Config& config);

// The text part of a model that sees images, too: text_config beside vision_config, and weights
// under model.language_model; or a config of text alone.
struct TextConfig {
  explicit TextConfig(const Config& config);
  Config config;
  std::string prefix;  // of its weights but the head's
  bool is_tied;        // said beside text_config, or in it
};

// What Qwen3-Next and its heirs have alike, whatever follows their mixers.
struct HybridConfig {
  std::string architecture;
  std::string prefix;    // of all weights but the head's
  int64_t hidden = 0;    // H
  int64_t q_heads = 0;   // Q
  int64_t kv_heads = 0;  // G
  int64_t head_dim = 0;  // D
  int64_t vocab = 0;     // V
  int64_t max_positions = 0;
  bool is_tied = false;  // the head's matrix is the embedding's
  float norm_eps = 0;
  ops::DeltaRuleDesc delta;
  std::vector<bool> is_recurrent;  // of each layer
  ops::Rope rope;

  int64_t layers() const { return std::ssize(is_recurrent); }
  int64_t rotary_dim() const { return 2 * std::ssize(rope.inv_freq); }
  int64_t q_width() const { return q_heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};
// Throws Error(kCheckpoint) naming file and key.
HybridConfig parse_hybrid(const TextConfig& text, std::string architecture,
                          ops::DeltaInputs inputs);

// Dims of a head that are turned: partial_rotary_factor, at top level or beside rope_theta.
int64_t parse_rotary_dim(const Config& config, int64_t head_dim);

}  // namespace nibble
