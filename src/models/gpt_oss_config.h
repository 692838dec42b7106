// GptOssConfig: config.json of a gpt-oss model, checked.
#pragma once

#include <cstdint>
#include <vector>

#include "io/config.h"
#include "models/model.h"
#include "ops/rope/rope.h"

namespace nibble {

struct GptOssConfig {
  int64_t layers = 0;
  int64_t hidden = 0;    // H
  int64_t q_heads = 0;   // Q
  int64_t kv_heads = 0;  // G
  int64_t head_dim = 0;  // D
  int64_t experts = 0;   // E
  int64_t top_k = 0;     // K
  int64_t width = 0;     // F
  int64_t vocab = 0;     // V
  int64_t max_positions = 0;
  int32_t window = kNoWindow;  // of sliding layers
  std::vector<bool> sliding;   // [layers]
  float norm_eps = 0;
  float swiglu_limit = 0;
  ops::Rope rope;

  int32_t window_of(int64_t layer) const { return sliding[layer] ? window : kNoWindow; }
};

// Throws Error(kCheckpoint) naming file and key for what is missing, out of range or does not fit
// together, and for settings that this model code does not have (tied embeddings, no attention
// bias, other activations or quantizations).
GptOssConfig parse_gpt_oss_config(const Config& config);

}  // namespace nibble
