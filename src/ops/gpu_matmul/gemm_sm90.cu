// Launches of the wgmma GEMM.
#include "ops/gpu_matmul/gemm_launch_sm90.cuh"

namespace nibble::ops::gpu {
namespace {

// y [T, N] = the slices' sums in order. Bytes: 4 N (slices + 1) a token, from L2.
constexpr int kAddThreads = 256;
__global__ void __launch_bounds__(kAddThreads)
    add_slices(float* y, const float* parts, int slices, int64_t floats) {
  cuda::griddep_wait();
  cuda::griddep_launch_dependents();
  const int64_t at = 4 * (int64_t{blockIdx.x} * kAddThreads + threadIdx.x);
  if (at >= floats) return;
  float4 sum = __ldcg(reinterpret_cast<const float4*>(parts + at));
#pragma unroll 4
  for (int s = 1; s < slices; ++s) {
    const float4 v = __ldcg(reinterpret_cast<const float4*>(parts + s * floats + at));
    sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
  }
  *reinterpret_cast<float4*>(y + at) = sum;
}

}  // namespace

void gemm(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  if (args.num_slots == 0) return;
  const sm90::GemmParams params = sm90::gemm_params(w, args);
  if (w.format == Format::kBF16) {
    if (out == GemmOut::kSwiglu) return launch<Format::kBF16, GemmOut::kSwiglu, false>(cx, params);
    CHECK(out == GemmOut::kF32);
    return sm90::launch<Format::kBF16, GemmOut::kF32, false>(cx, params);
  }
  if (w.format == Format::kMxfp4) return sm90::launch_tiles<Format::kMxfp4>(cx, params, out);
  with_unit_format(w, [&]<Format kFormat>() { sm90::launch_tiles<kFormat>(cx, params, out); });
}

void gemm_slices(Ctx& cx, Scratch& scratch, const Weight& w, const uint16_t* x, int64_t tokens,
                 float* y) {
  if (tokens == 0) return;
  sm90::GemmParams params =
      sm90::gemm_params(w, {.x = x, .num_slots = static_cast<int32_t>(tokens)});
  const int64_t rows = slice_scratch_rows(tokens), floats = tokens * w.rows;
  auto* const parts = scratch.take<float>(rows * w.rows);
  params.y = parts;
  int32_t slices = 1;
  with_unit_format(w, [&]<Format kFormat>() {
    slices = sm90::launch_slices<kFormat>(cx, params, rows / tokens);
  });
  if (slices == 1) return gemm(cx, w, x, tokens, y);
  cuda::launch(cx.stream, add_slices,
               {.grid = dim3(static_cast<unsigned>((floats / 4 + kAddThreads - 1) / kAddThreads)),
                .block = dim3(kAddThreads),
                .release = cuda::Release::kAfterWait},
               y, parts, slices, floats);
}

void gemm(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  gemm(cx, w, GemmOut::kF32, {.x = x, .y = y, .num_slots = static_cast<int32_t>(tokens)});
}

}  // namespace nibble::ops::gpu
