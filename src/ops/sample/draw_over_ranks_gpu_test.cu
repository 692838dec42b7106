#include <algorithm>

#include "cuda/launch.cuh"
#include "ops/sample/draw_over_ranks_gpu_test.h"
#include "ops/sample/draw_rows.cuh"

namespace nibble::ops {
namespace {

using namespace gpu::drawing;  // NOLINT

__global__ void __launch_bounds__(kThreads)
    draw_on_ranks(const RankDraws* of_ranks, const SamplePart* parts, const uint32_t* never,
                  const Draw* draws, int64_t rows) {
  nibble::cuda::griddep_wait();
  const RankDraws& rank = of_ranks[blockIdx.y];
  const Args args{.out = rank.out,
                  .logits = rank.logits,
                  .never = never,
                  .draws = draws,
                  .parts = parts,
                  .rows = rows,
                  .columns = rank.columns};
  Together together(rank.peers);
  draw_rows(args, together);
  together.end();
}

}  // namespace

void draw_on_every_rank(Ctx& cx, const RankDraws* of_ranks, int ranks, const SamplePart* parts,
                        const uint32_t* never, const Draw* draws, int64_t rows) {
  constexpr int64_t kBlocks = 5;  // fewer than rows, and all at work at a time
  const dim3 grid(static_cast<unsigned>(std::min(rows, kBlocks)), static_cast<unsigned>(ranks));
  cuda::launch(cx.stream, draw_on_ranks, {.grid = grid, .block = dim3(kThreads)}, of_ranks, parts,
               never, draws, rows);
}

}  // namespace nibble::ops
