// What norm_qkv may leave to attention on GPUs, in steps of few tokens, each of a sequence of its
// own: products as they are. Attention then norms and turns the heads, and appends k and v to the
// pages, which saves a launch between the two. Whether it does is known from the sites
// (Site::readers_take).
#pragma once

#include <cstdint>

#include "ops/weight.h"

namespace nibble::ops {

inline constexpr int32_t kMostLeftHeads = 8;  // tokens

struct LeftHeads {
  float* products = nullptr;  // [T, (Q + 2 G) * D], or none: memory from the one op to the other
  // Set by norm_qkv, where it has left them there; cleared by attention.
  bool are_left = false;
  const float* cos_sin = nullptr;  // [T, R]
  int32_t rotary = 0;              // R: dims of a head that are turned
  Norm q = {}, k = {};             // of heads, or none
};

}  // namespace nibble::ops
