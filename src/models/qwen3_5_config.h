// config.json of Qwen3.5's dense models.
#pragma once

#include <string>
#include <vector>

#include "io/config.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/rope/rope.h"

namespace nibble {

struct Qwen35Config {
  std::string architecture;
  std::string prefix;    // of all weights but the head's
  int64_t hidden = 0;    // H
  int64_t q_heads = 0;   // Q
  int64_t kv_heads = 0;  // G
  int64_t head_dim = 0;  // D
  int64_t width = 0;     // F
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
Qwen35Config parse_qwen3_5(const Config& config);

}  // namespace nibble
