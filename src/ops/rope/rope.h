// Rotary position embedding, plain, YaRN and Llama 3's.
// Source: Peng et al., "YaRN" (arXiv 2309.00071), as transformers and openai/gpt-oss compute it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/ctx.h"
#include "ops/step.h"

namespace nibble::ops {

// As in config.json's rope_scaling / rope_parameters.
struct YarnParams {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  double original_max_position = 0;
  bool truncate = true;  // round the ends of the ramp outwards to whole indices
  std::optional<double> attention_factor = std::nullopt;  // in place of 0.1 ln(factor) + 1
};

// Pair i of a head is (x[i], x[i + D/2]); it turns by position * inv_freq[i].
struct Rope {
  std::vector<float> inv_freq;  // [D / 2]
  double concentration = 1;     // scales cos and sin, so q.k by its square
};

Rope make_rope(int head_dim, double theta, const std::optional<YarnParams>& yarn);

// rope_type llama3: waves longer than the original context over `low` turn `factor` times slower,
// those shorter than it over `high` as they did, those between by a mean of both.
// Source: transformers 5.23, modeling_rope_utils.py.
struct Llama3Params {
  double factor = 8;
  double low = 1, high = 4;
  double original_max_position = 8192;
};
Rope make_llama3_rope(int head_dim, double theta, const Llama3Params& params);

// cos_sin [T, D] f32, out: row t holds D/2 cosines, then D/2 sines, of position t of the step,
// times the concentration. The angle is rounded to float32 once, as transformers does.
void rope_angles(Ctx& cx, const Tensor& cos_sin, const Rope& rope, const Step& s);

}  // namespace nibble::ops
