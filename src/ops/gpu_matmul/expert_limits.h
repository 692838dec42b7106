// How many experts, and choices of a token, the GPU's products of experts take.
#pragma once

namespace nibble::ops::gpu {

inline constexpr int kMaxExperts =
    513;  // whose lists lie in a block's shared memory; one is shared
inline constexpr int kMaxCountedExperts = 256;  // where a thread counts for each
inline constexpr int kMaxChoices = 16;          // of one token

}  // namespace nibble::ops::gpu
