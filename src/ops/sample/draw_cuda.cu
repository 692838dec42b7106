// sample_drawn on a GPU, and over those of several ranks.
//   logits [R, V] f32, in    never [ceil(V / 32)], in, or none    draws [R], in    out: see
//   GreedyOut
// A block a row, over ranks every gridDim-th. What is the same for every draw of a row,
// sample_greedy has left. The row, 4 V bytes, is read from the L2 cache once, 4 times with top_k or
// top_p, 7 with both: at V = 201,088 about 7 us each. Over ranks each reads its columns alone, and
// tells the others: 16 KB at each of the three rounds that top_k or top_p takes, and 24 bytes to
// draw.
#include <algorithm>

#include "cuda/launch.cuh"
#include "ops/all_reduce/gpu_ranks.h"
#include "ops/sample/draw.h"
#include "ops/sample/draw_rows.cuh"
#include "ops/sample/sample_parts.h"

namespace nibble::ops::gpu {
namespace {

using drawing::kThreads;

__global__ void __launch_bounds__(kThreads) draw_kernel(const __grid_constant__ drawing::Args a) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  drawing::Alone alone;
  drawing::draw_rows(a, alone);
}

// Two on an SM have room, as thread blocks that wait for each other must.
__global__ void __launch_bounds__(kThreads, 2)
    draw_over_ranks(const __grid_constant__ drawing::Args a, const __grid_constant__ PeerMemory m) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  drawing::Together together(m);
  drawing::draw_rows(a, together);
  together.end();
}

drawing::Args args_of(Ctx& cx, const GreedyOut& out, const Tensor& logits, const uint32_t* never,
                      const Draw* draws) {
  return {.out = out,
          .logits = logits.as<float>(),
          .never = never,
          .draws = draws,
          .parts = SampleScratch(Scratch(cx.scratch), logits.dim(0)).parts,
          .rows = logits.dim(0),
          .columns = logits.dim(1)};
}

}  // namespace

void sample_drawn(Ctx& cx, const GreedyOut& out, const Tensor& logits, const uint32_t* never,
                  const Draw* draws) {
  if (logits.dim(0) == 0) return;
  CHECK(out.first_id == 0);
  cuda::launch(cx.stream, draw_kernel,
               {.grid = static_cast<unsigned>(logits.dim(0)), .block = kThreads},
               args_of(cx, out, logits, never, draws));
}

void sample_drawn_over_ranks(Ctx& cx, const GreedyOut& out, const Tensor& logits,
                             const uint32_t* never, const Draw* draws) {
  if (logits.dim(0) == 0) return;
  const PeerMemory& peers = ranks_of(cx).peers();
  const int64_t blocks = std::min<int64_t>(logits.dim(0), peers.num_blocks);
  cuda::launch(cx.stream, draw_over_ranks,
               {.grid = static_cast<unsigned>(blocks),
                .block = kThreads,
                .release = cuda::Release::kAfterWait},
               args_of(cx, out, logits, never, draws), peers);
}

}  // namespace nibble::ops::gpu
