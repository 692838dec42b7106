#include "ops/linear/linear.h"

#include <algorithm>

#include "cpu/thread_pool.h"
#include "formats/mxfp4.h"

namespace nibble::ops {

LinearScratch::LinearScratch(Scratch& scratch, Format format, int64_t cols, int64_t inputs,
                             int threads)
    : x(scratch.take<const float*>(inputs)),
      ordered(scratch.take<float>(format == Format::kMxfp4 ? inputs * cols : 0)),
      decoded(scratch.take<float>(threads * kBlockRows * cols)) {}

void arrange_inputs(Ctx& cx, const LinearScratch& scratch, Format format, const float* x,
                    int64_t inputs, int64_t cols) {
  const bool reorder = format == Format::kMxfp4;
  for (int64_t m = 0; m < inputs; ++m) scratch.x[m] = (reorder ? scratch.ordered : x) + m * cols;
  if (!reorder) return;
  constexpr int64_t kHalf = kMxfp4BlockElems / 2;
  cx.pool->parallel_for(inputs * cols / kMxfp4BlockElems, 1, [&](int64_t b, int64_t end, int) {
    for (; b < end; ++b) {
      const float* from = x + b * kMxfp4BlockElems;
      float* to = scratch.ordered + b * kMxfp4BlockElems;
      for (int64_t i = 0; i < kHalf; ++i) to[i] = from[2 * i], to[kHalf + i] = from[2 * i + 1];
    }
  });
}

void block_product(const FloatKernels& kernels, const Weight& w, const float* const* x,
                   int64_t inputs, float* decoded, float* y, int64_t ldy) {
  if (inputs <= kernels.direct_tokens) return kernels.dot_weight(w, x, inputs, y, ldy);
  kernels.decode(w, decoded);
  kernels.dot_decoded(w, decoded, x, inputs, y, ldy);
}

int64_t task_rows(int64_t rows, int threads) {
  constexpr int64_t kTasksPerThread = 8;
  const int64_t share = rows / (kTasksPerThread * threads);
  return std::max<int64_t>(kBlockRows, share / kBlockRows * kBlockRows);
}

void linear(Ctx& cx, const FloatKernels& kernels, const LinearScratch& scratch, float* y,
            const float* x, int64_t inputs, const Weight& w) {
  arrange_inputs(cx, scratch, w.format, x, inputs, w.cols);
  const int64_t per_task = task_rows(w.rows, cx.pool->size());
  cx.pool->parallel_tasks((w.rows + per_task - 1) / per_task, [&](int64_t task, int worker) {
    const int64_t end = std::min(w.rows, (task + 1) * per_task);
    float* decoded = scratch.decoded + worker * kBlockRows * w.cols;
    for (int64_t r = task * per_task; r < end; r += kBlockRows)
      block_product(kernels, w.slice(r, std::min<int64_t>(kBlockRows, end - r)), scratch.x, inputs,
                    decoded, y + r, w.rows);
  });
}

}  // namespace nibble::ops
