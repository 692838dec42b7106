// Experts that a checkpoint has in one tensor each way, told as a tensor an expert and matrix.
#pragma once

#include <vector>

#include "io/safetensors.h"

namespace nibble {

// NAME.experts.gate_up_proj [E, 2F, H], the gates' rows first, beside NAME.experts.down_proj
// [E, H, F], floats both, become NAME.experts.<e>.{gate,up,down}_proj.weight: the same bytes. All
// else stays as it is.
std::vector<TensorInfo> split_fused_experts(std::vector<TensorInfo> tensors);

}  // namespace nibble
