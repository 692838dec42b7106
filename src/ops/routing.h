// Routing: which experts each token of the step goes to, and the same seen from the experts.
// Made once per layer by norm_route, read by moe_up and moe_down.
#pragma once

#include <cstdint>

namespace nibble {

// Experts chosen by sigmoid(logit) + bias and weighed by the sigmoid: DeepSeek's and Nemotron's
// routers. With `groups` of experts, all of one size, only those of the `best_groups` of them with
// the largest sum of their two best are chosen.
struct SigmoidRoute {
  bool is_used = false;
  int32_t groups = 1, best_groups = 1;
  float scale = 1;  // of weights
  bool operator==(const SigmoidRoute&) const = default;
};

// The most tokens of a step whose choice is left to those who read it.
inline constexpr int32_t kMostLeft = 8;

// A slot is one (token, choice) pair; slots are numbered expert by expert, by token within one.
struct Routing {
  int32_t num_tokens = 0;      // T
  int32_t num_experts = 0;     // E
  int32_t top_k = 0;           // K
  int32_t* ids = nullptr;      // [T, K] chosen experts, best first; ties go to the lower id
  float* p = nullptr;          // [T, K] what they are weighed by
  int32_t* counts = nullptr;   // [E] slots of each expert
  int32_t* offsets = nullptr;  // [E + 1] first slot of each expert
  int32_t* slot = nullptr;     // [T, K] slot of a choice
  int32_t* token = nullptr;    // [T * K] token of a slot
  // [T, E] on GPUs, where norm_route has left the choice for few tokens to those who read it: every
  // block makes it for its token, and moe_up fills the arrays above, counts and offsets of one
  // token alone. Slots are then numbered token by token, by expert within one. Else null.
  const float* logits = nullptr;
  float* room = nullptr;  // [kMostLeft, E] for those; none: the choice is not left
  bool over_all = false;  // p is a softmax over all E, or of sigmoids not divided by their sum
  SigmoidRoute sigmoid = {};
  const float* bias = nullptr;  // [E], of `sigmoid`
  // The last of the E experts: no token chooses them, each has them for the last of its K.
  int32_t shared = 0;
  // [H] bf16, of one that is shared, weighed by the sigmoid of h . shared_gate; or none: by 1.
  const uint16_t* shared_gate = nullptr;
  bool adds = false;  // moe_down adds to what its output holds
};

// Fills counts, offsets, slot and token from ids.
void sort_by_expert(Routing& routing);

}  // namespace nibble
