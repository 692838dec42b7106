// What config.json of Qwen3-Next and its heirs says of their MTP layer: that it is one more layer
// of theirs that attends to all positions.
#pragma once

#include <cstdint>

#include "io/config.h"
#include "ops/rope/rope.h"

namespace nibble {

struct MtpConfig {
  int64_t hidden = 0, q_heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;  // H, Q, G, D, V
  int64_t width = 0;                                 // F, of the MLP or of an expert
  int64_t experts = 0, top_k = 0, shared_width = 0;  // none: a dense MLP
  bool over_all = false;  // chosen experts' weights are their part of all
  bool is_tied = false;   // the model's head is its embedding
  float norm_eps = 0;
  ops::Rope rope;
  int32_t target_layers = 0, max_positions = 0;

  int64_t rotary_dim() const { return 2 * std::ssize(rope.inv_freq); }
  int64_t q_width() const { return q_heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

// Whether `config` is of a model that may have one.
bool may_have_mtp(const Config& config);

// Throws Error as for the model itself, kUnsupported where it says that there is no such layer, or
// more than nibble runs.
MtpConfig parse_mtp_config(const Config& config);

}  // namespace nibble
