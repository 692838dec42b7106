// For gemm_scaled_sm12x_gpu_test.cc: the block-scaled GEMM with the exact body of its instruction,
// and what its work items fetch.
#include "ops/gpu_matmul/gemm_scaled_sm12x.cuh"

namespace nibble::ops::gpu::sm12x {

void gemm_scaled_exact(Ctx& cx, const Weight& w, const GemmArgs& args) {
  const auto launch = [&]<Format kFormat>() {
    launch_scaled<ScaledShape<kFormat, GemmOut::kF32, Values::kE4m3, Body::kExact>>(cx, w, args);
  };
  if (w.format == Format::kMxfp4) return launch.operator()<Format::kMxfp4>();
  if (w.format == Format::kMxfp8) return launch.operator()<Format::kMxfp8>();
  if (w.format == Format::kFp8Row) return launch.operator()<Format::kFp8Row>();
  launch.operator()<Format::kNvfp4>();
}

void gemm_w4a4_exact(Ctx& cx, const Weight& w, const GemmArgs& args) {
  if (w.format == Format::kMxfp4)
    return launch_scaled<ScaledShape<Format::kMxfp4, GemmOut::kF32, Values::kE2m1, Body::kExact>>(
        cx, w, args);
  launch_scaled<ScaledShape<Format::kNvfp4, GemmOut::kF32, Values::kE2m1, Body::kExact>>(cx, w,
                                                                                         args);
}

namespace {

// The schedule as the GEMM's blocks make it. fetched [E][rows / 16]: how often a tile of 16 rows
// is; covered [slots]: by how many tiles of rows a slot is met.
__global__ void __launch_bounds__(ScaledSizes::kThreads)
    count_items(const GemmArgs g, int32_t* fetched, int32_t* covered) {
  __shared__ int32_t lists[3 * kMaxExperts + 1];
  GemmSchedule schedule{.offsets = g.offsets,
                        .experts = g.experts,
                        .row_tiles = (g.rows + ScaledSizes::kRows - 1) / ScaledSizes::kRows,
                        .rows_of_tile = ScaledSizes::kRows,
                        .num_slots = g.num_slots,
                        .max_n = g.max_n,
                        .width = lists,
                        .order = lists + kMaxExperts,
                        .prefix = lists + 2 * kMaxExperts};
  schedule.make();
  if (threadIdx.x != 0) return;
  GemmItem it;
  for (int item = blockIdx.x; schedule.find(item, it); item += gridDim.x) {
    for (int row = it.row0; row < min(it.row0 + ScaledSizes::kRows, g.rows); row += 16)
      atomicAdd(fetched + it.expert * (g.rows / 16) + row / 16, 1);
    for (int s = 0; s < it.valid; ++s) atomicAdd(covered + it.slot0 + s, 1);
  }
}

}  // namespace

void count_fetches(Ctx& cx, const GemmArgs& args, int32_t* fetched, int32_t* covered) {
  cuda::launch(cx.stream, count_items,
               {.grid = dim3(48), .block = dim3(ScaledSizes::kThreads), .pdl = false}, args,
               fetched, covered);
}

}  // namespace nibble::ops::gpu::sm12x
