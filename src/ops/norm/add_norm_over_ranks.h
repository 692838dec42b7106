// add_norm where d is this rank's part of a sum that all_reduce has left: y = x + the sum over the
// ranks of d; h = norm(y). Spares a sum that is written and read again, and hides the memory's work
// behind the link's.
#pragma once

#include "ops/all_reduce/one_shot.h"
#include "ops/norm/add_norm.h"

namespace nibble::ops::gpu {

// A thread has two groups of 8 columns at most.
inline constexpr int64_t kMostHiddenOverRanks = 6144;

// y and h have the bits that all_reduce_blocks and add_norm give them; not under --exact, which has
// no rows that leave a sum. No a.rows; H % 8 == 0, % 32 with a.e4m3, at most kMostHiddenOverRanks.
// Where a rank does not come h is NaN.
void add_norm_over_ranks(Ctx& cx, const PeerMemory& peers, const AddNorm& a,
                         const GateLogits& gate);
// d is bf16 [T, H], and a product has sent it: gemm_over_ranks.
void add_norm_of_sent(Ctx& cx, const PeerMemory& peers, const AddNorm& a, const GateLogits& gate);
// d is to be made of choices: room for bf16 [T, H]. H % 8 == 0; more than 2 peers.num_blocks rows,
// T K H below 2^32.
void add_norm_of_choices(Ctx& cx, const PeerMemory& peers, const AddNorm& a, const GateLogits& gate,
                         const LeftChoices& choices);

}  // namespace nibble::ops::gpu
