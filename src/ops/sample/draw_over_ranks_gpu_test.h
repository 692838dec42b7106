// For draw_over_ranks_gpu_test.cc: what sample_drawn_over_ranks does on each of several ranks, in
// one grid of one GPU.
#pragma once

#include "ops/all_reduce/one_shot.h"
#include "ops/ctx.h"
#include "ops/sample/draw.h"
#include "ops/sample/sample_parts.h"

namespace nibble::ops {

struct RankDraws {
  GreedyOut out;
  const float* logits;  // [R, columns], of ids from out.first_id on
  int64_t columns;
  gpu::PeerMemory peers;
};

// of_ranks [ranks] and what else is pointed at lie on the device; parts: as join_greedy leaves them
// on each rank.
void draw_on_every_rank(Ctx& cx, const RankDraws* of_ranks, int ranks, const SamplePart* parts,
                        const uint32_t* never, const Draw* draws, int64_t rows);

}  // namespace nibble::ops
