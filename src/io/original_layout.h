// OpenAI's own gpt-oss checkpoint layout (the `original/` folder), told in Hugging Face's words.
// Source: gpt_oss/torch/{model,weights}.py and transformers' convert_gpt_oss_weights_to_hf.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/config.h"
#include "io/safetensors.h"

namespace nibble {

// Whether a config is in OpenAI's words: no model_type, but num_experts and rope_ntk_beta.
bool is_original_config(const Config& config);

// The same config in Hugging Face's words; what only their file says (the rule for layer_types, the
// norm's epsilon, which weights are MXFP4) is filled in from OpenAI's code.
Config from_original_config(const Config& config);

// Whether a tensor has an original name (block.N... or embedding, unembedding, norm).
bool is_original_name(std::string_view name);

// The same bytes under Hugging Face names: one tensor, or for a fused qkv its first q_rows rows as
// q and two halves of the rest as k and v. q_rows is the number of columns of the block's attn.out.
// Throws Error(kCheckpoint) naming `file` for a name that is not known or rows that do not split
// so.
std::vector<TensorInfo> from_original_tensor(const TensorInfo& tensor, int64_t q_rows,
                                             const std::string& file);

}  // namespace nibble
