// Ctx: where ops run. Carries the thread pool, the format of activations and the tap for tests.
#pragma once

#include <functional>
#include <string_view>

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
  DType activations = DType::kF32;  // kF32 or kBF16: what stored activations are rounded to
  Tap tap;                          // goldens, `nibble diff`; empty while serving
};

}  // namespace nibble::ops
