// config.json of an Eagle3 head, as SpecForge, ModelOpt and speculators write it.
#pragma once

#include <cstdint>
#include <vector>

#include "io/config.h"
#include "ops/rope/rope.h"

namespace nibble {

struct Eagle3Config {
  int64_t hidden = 0;         // H, as wide as the embedding's rows
  int64_t target_hidden = 0;  // of the rows that it reads
  int64_t q_heads = 0;        // Q
  int64_t kv_heads = 0;       // G
  int64_t head_dim = 0;       // D
  int64_t width = 0;          // F
  int64_t target_vocab = 0;
  int64_t vocab = 0;  // its own
  float norm_eps = 0;
  bool has_bias = false;               // of q, k, v and o
  bool norm_before_residual = false;   // attention adds to what was normed
  bool norm_before_fc = false;         // the target's rows are normed, all together
  bool norm_output = false;            // what the next draft goes on from is normed
  std::vector<int32_t> target_layers;  // whose entering rows it reads, ascending
  ops::Rope rope;

  int64_t q_width() const { return q_heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

// For a target of so many layers. Throws Error(kCheckpoint) naming the key, kUnsupported for what
// nibble does not run.
Eagle3Config parse_eagle3_config(const Config& config, int32_t target_layers);

}  // namespace nibble
