// Ctx: where ops run. Carries the thread pool, the kernels allowed and chosen, the format of
// activations and the tap for tests.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

#include "ops/plan.h"
#include "tensor/tensor.h"

namespace nibble::cpu {
class ThreadPool;
}

namespace nibble::ops {

// Called with a named buffer of a layer right after the op that wrote it (layer -1: outside
// layers).
using Tap = std::function<void(std::string_view name, int layer, const Tensor& value)>;

struct Ctx {
  cpu::ThreadPool* pool = nullptr;
  DType activations = DType::kF32;  // kF32 or kBF16: what stored h, q, att and u are rounded to
  KernelOptions kernels = {};       // read when a model is loaded
  Tap tap = {};                     // goldens, `nibble diff`; empty while serving

  int threads() const;  // of the pool; 1 without one

  // Set by the model for the time of a step.
  const KernelPlan* plan = nullptr;
  int layer = -1;
  std::span<std::byte> scratch = {};  // working memory within one op
};

}  // namespace nibble::ops
