// For gemm_fp8_sm12x_gpu_test.cc: the block-scaled GEMM with the exact body of its instruction, and
// what its work items fetch.
#include "ops/gpu_matmul/gemm_fp8_sm12x.cuh"

namespace nibble::ops::gpu::sm12x {

void gemm_fp8_exact(Ctx& cx, const Weight& w, const GemmArgs& args) {
  launch_fp8<GemmOut::kF32, Body::kExact>(cx, w, args);
}

namespace {

// The schedule as the GEMM's blocks make it. fetched [E][rows / 16]: how often a tile of 16 rows
// is; covered [slots]: by how many tiles of rows a slot is met.
__global__ void __launch_bounds__(Fp8Shape::kThreads)
    count_items(const GemmArgs g, int32_t* fetched, int32_t* covered) {
  __shared__ int32_t lists[3 * kMaxExperts + 1];
  GemmSchedule schedule{.offsets = g.offsets,
                        .experts = g.experts,
                        .row_tiles = (g.rows + Fp8Shape::kRows - 1) / Fp8Shape::kRows,
                        .rows_of_tile = Fp8Shape::kRows,
                        .num_slots = g.num_slots,
                        .max_n = g.max_n,
                        .width = lists,
                        .order = lists + kMaxExperts,
                        .prefix = lists + 2 * kMaxExperts};
  schedule.make();
  if (threadIdx.x != 0) return;
  GemmItem it;
  for (int item = blockIdx.x; schedule.find(item, it); item += gridDim.x) {
    for (int row = it.row0; row < min(it.row0 + Fp8Shape::kRows, g.rows); row += 16)
      atomicAdd(fetched + it.expert * (g.rows / 16) + row / 16, 1);
    for (int s = 0; s < it.valid; ++s) atomicAdd(covered + it.slot0 + s, 1);
  }
}

}  // namespace

void count_fetches(Ctx& cx, const GemmArgs& args, int32_t* fetched, int32_t* covered) {
  cuda::launch(cx.stream, count_items,
               {.grid = dim3(48), .block = dim3(Fp8Shape::kThreads), .pdl = false}, args, fetched,
               covered);
}

}  // namespace nibble::ops::gpu::sm12x
