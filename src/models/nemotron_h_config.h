// config.json of NemotronH.
#pragma once

#include <string>

#include "io/config.h"
#include "models/loaded_weights.h"
#include "models/shard.h"
#include "ops/mamba2/mamba2.h"
#include "ops/rope/rope.h"
#include "ops/routing.h"

namespace nibble {

struct NemotronHConfig {
  std::string mixers;    // of each layer: M (Mamba2), * (attention), E (experts) or - (MLP)
  int64_t hidden = 0;    // H
  int64_t q_heads = 0;   // Q
  int64_t kv_heads = 0;  // G
  int64_t head_dim = 0;  // D
  int64_t width = 0;     // of an MLP
  int64_t vocab = 0;     // V
  int64_t max_positions = 0;
  float norm_eps = 0;
  ops::Mamba2Desc mamba;
  int64_t experts = 0;  // E
  int64_t top_k = 0;    // K
  int64_t expert_width = 0, shared_width = 0;
  bool over_all = false;  // chosen experts' weights are not divided by their sum
  SigmoidRoute sigmoid;
  ops::Rope rope;  // which turns nothing

  int64_t layers() const { return std::ssize(mixers); }
  bool has(char mixer) const { return mixers.find(mixer) != std::string::npos; }
  int64_t q_width() const { return q_heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

// Throws Error(kCheckpoint) naming file and key.
NemotronHConfig parse_nemotron_h(const Config& config);

// What a rank has of a Mamba2 layer: whole groups, over which its norm goes. Throws
// Error(kUnsupported) where ranks are more.
struct MambaCuts {
  MambaCuts(const ops::Mamba2Desc& all, const Shard& shard);
  ops::Mamba2Desc here;
  Cut heads;
  Cuts channels;  // of the convolution: x, B, C
  Cuts inputs;    // rows of in_proj: z, those, dt
};

}  // namespace nibble
