// Launches of the wgmma GEMM.
#include "ops/gpu_matmul/gemm_dense_sm90.h"
#include "ops/gpu_matmul/gemm_launch_sm90.cuh"
#include "ops/gpu_matmul/rows_products.h"
#include "ops/gpu_matmul/slices.h"
#include "ops/gpu_matmul/stream_plan.h"

namespace nibble::ops::gpu {
namespace {

// BF16 rows of few tokens by gemm_rows_sm90.cuh, in the scratch that slices would take.
bool streams_rows(const Weight& w, int64_t tokens, int num_sms) {
  if (w.format != Format::kBF16 || tokens > 64) return false;
  const int width = stream_width(tokens);
  const StreamPlan plan = plan_rows_stream(w.rows, w.cols, width, num_sms);
  return plan.shares == 1 ||
         plan.blocks * plan.of_block * width <= slice_scratch_rows(tokens) * w.rows;
}

// Tokens of a dense matrix that are multiplied at once: as many as L2 holds while all row tiles
// meet them. Of fewer rows parts of them leave SMs idle.
constexpr int32_t kTokensAtOnce = 2048, kRowsOfParts = 4096;

bool goes_in_parts(const Weight& w, GemmOut out, const GemmArgs& args) {
  return args.offsets == nullptr && args.token == nullptr && out != GemmOut::kQkv &&
         w.rows >= kRowsOfParts && 2 * args.num_slots > 3 * kTokensAtOnce;
}
int64_t row_bytes(const Weight& w, GemmOut out) {
  return out == GemmOut::kF32 ? 4 * w.rows : out == GemmOut::kSwiglu ? w.rows : 2 * w.rows;
}
void gemm_in_parts(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  const int64_t tokens = args.num_slots, parts = (tokens + kTokensAtOnce - 1) / kTokensAtOnce;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t begin = tokens * i / parts;
    GemmArgs part = args;
    part.num_slots = static_cast<int32_t>(tokens * (i + 1) / parts - begin);
    part.x = static_cast<const uint16_t*>(args.x) + begin * w.cols;
    part.y = static_cast<char*>(args.y) + begin * row_bytes(w, out);
    gemm(cx, w, out, part);
  }
}

}  // namespace

void gemm(Ctx& cx, const Weight& w, GemmOut out, const GemmArgs& args) {
  if (args.num_slots == 0) return;
  if (has_items_of_gemm_dense(w, args.num_slots, cx.kernels.gpu.num_sms))
    return gemm_dense(cx, w, out, args);
  if (goes_in_parts(w, out, args)) return gemm_in_parts(cx, w, out, args);
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
  if (streams_rows(w, tokens, cx.kernels.gpu.num_sms))
    return multiply_rows_sm90(cx, scratch, w, x, tokens, y);
  sm90::GemmParams params =
      sm90::gemm_params(w, {.x = x, .num_slots = static_cast<int32_t>(tokens)});
  const int64_t rows = slice_scratch_rows(tokens);
  auto* const parts = scratch.take<float>(rows * w.rows);
  params.y = parts;
  int32_t slices = 1;
  if (w.format == Format::kBF16)
    slices = sm90::launch_slices<Format::kBF16>(cx, params, rows / tokens);
  else
    with_unit_format(w, [&]<Format kFormat>() {
      slices = sm90::launch_slices<kFormat>(cx, params, rows / tokens);
    });
  if (slices == 1) return gemm(cx, w, x, tokens, y);
  add_slices(cx, y, parts, slices, tokens * w.rows);
}

void gemm(Ctx& cx, const Weight& w, const uint16_t* x, int64_t tokens, float* y) {
  gemm(cx, w, GemmOut::kF32, {.x = x, .y = y, .num_slots = static_cast<int32_t>(tokens)});
}

}  // namespace nibble::ops::gpu
