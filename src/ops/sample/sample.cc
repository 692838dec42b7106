#include "ops/sample/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/sample/sample_parts.h"

namespace nibble::ops {

void sample_greedy(Ctx& cx, const GreedyOut& out, const Tensor& logits, const uint32_t* never) {
  constexpr SampleGreedyFn* kKernel = NIBBLE_CUDA_KERNEL(gpu::sample_greedy);
  SampleGreedyFn* const run = cx.on_gpu() ? kKernel : ref::sample_greedy;
  CHECK(run != nullptr);
  run(cx, out, logits, never);
}

void join_greedy(Ctx& cx, const GreedyOut& out, int64_t rows) {
  constexpr JoinGreedyFn* kKernel = NIBBLE_CUDA_KERNEL(gpu::join_greedy);
  CHECK(kKernel != nullptr && cx.on_gpu());
  kKernel(cx, out, rows);
}

int64_t gpu::sample_scratch_bytes(int64_t rows) {
  return SampleScratch(Scratch(), rows).used_bytes;
}

void ref::sample_greedy(Ctx&, const GreedyOut& out, const Tensor& logits, const uint32_t* never) {
  const int64_t vocab = logits.dim(1);
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    const float* row = logits.as<float>() + r * vocab;
    bool is_finite = true;
    float largest = -std::numeric_limits<float>::infinity();
    int64_t best = Greedy::kNone;
    for (int64_t i = 0; i < vocab; ++i) {
      is_finite = is_finite && std::isfinite(row[i]);
      largest = std::max(largest, row[i]);
      const int64_t id = out.first_id + i;
      const bool is_allowed = never == nullptr || (never[id / 32] >> (id % 32) & 1) == 0;
      if (is_allowed && (best < 0 || row[i] > row[best])) best = i;
    }
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(double{row[i]} - largest);
    if (!is_finite) best = Greedy::kNotFinite;
    Greedy found{static_cast<int32_t>(best), 0};
    if (best >= 0) {
      found.id += out.first_id;
      found.logprob = static_cast<float>(row[best] - largest - std::log(sum));
    }
    out.rows[*out.turn * out.stride + r] = found;
    if (out.ids != nullptr) out.ids[r] = std::max(0, found.id);
  }
}

}  // namespace nibble::ops
