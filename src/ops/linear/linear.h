// Matrix products of the blocked float path, shared by the ops that have one. Not an op: no table.
#pragma once

#include <cstdint>

#include "ops/blocked/float_kernels.h"
#include "ops/ctx.h"
#include "ops/scratch.h"
#include "ops/weight.h"

namespace nibble::ops {

// Working memory for products of `inputs` vectors of length `cols`.
struct LinearScratch {
  LinearScratch(Scratch& scratch, Format format, int64_t cols, int64_t inputs, int threads);
  const float** x;  // [inputs]
  float* ordered;   // [inputs, cols] in block order; MXFP4 only
  float* decoded;   // [threads][kBlockRows, cols]
};

// Copies rows of x into block order (see FloatKernels) where the format asks for it, and points
// scratch.x at the rows.
void arrange_inputs(Ctx& cx, const LinearScratch& scratch, Format format, const float* x,
                    int64_t inputs, int64_t cols);

// y[m * ldy + r] for the rows of `w` (at most kBlockRows) and `inputs` inputs. `decoded` is one
// worker's.
void block_product(const FloatKernels& kernels, const Weight& w, const float* const* x,
                   int64_t inputs, float* decoded, float* y, int64_t ldy);

// y [inputs, N] = x [inputs, K] W^T + b, on all workers.
void linear(Ctx& cx, const FloatKernels& kernels, const LinearScratch& scratch, float* y,
            const float* x, int64_t inputs, const Weight& w);

// Rows per task such that every worker gets several tasks, each long enough to stream: a multiple
// of kBlockRows.
int64_t task_rows(int64_t rows, int threads);

}  // namespace nibble::ops
