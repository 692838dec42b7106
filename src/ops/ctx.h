// Ctx: where ops run. Carries the thread pool or the GPU's stream, the kernels allowed and chosen,
// the format of activations and the tap for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "cuda/caps.h"
#include "cuda/launch_order.h"
#include "ops/kernel_table.h"
#include "ops/norm_qkv/left_heads.h"
#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace nibble::cpu {
class ThreadPool;
}

namespace nibble::dist {
class Comm;
}

namespace nibble::ops {

struct Site;

// A sum over the ranks that is still to be made; none without a site.
struct LeftSum {
  const Site* site = nullptr;  // of all_reduce
  Tensor t = {};
};

// Called with a named buffer of a layer, on the host, right after the op that wrote it (layer -1:
// outside layers).
using Tap = std::function<void(std::string_view name, int layer, const Tensor& value)>;

struct Ctx {
  cpu::ThreadPool* pool = nullptr;
  DType activations = DType::kF32;  // kF32 or kBF16: what stored h, q, att and u are rounded to
  KernelOptions kernels = {};       // read when a model is loaded
  Tap tap = {};                     // goldens, `nibble diff`; empty while serving
  std::string tap_only = {};        // the one buffer shown to the tap; empty: all of them

  dist::Comm* comm = nullptr;  // of the ranks that share each step; none where there is one
  LeftSum left_sum = {};       // which the op that comes next makes (Site::left_from)

  cuda::OrderedStream stream = nullptr;  // where kernels are launched; none on the CPU
  // On GPUs: what an op has just launched is the last that wrote these. Ops say so of all that they
  // write, so that kernels may read early what is old.
  void wrote(std::initializer_list<const void*> buffers) {
    if (!on_gpu()) return;
    for (const void* buffer : buffers) stream.order.wrote(buffer);
  }

  int threads() const;  // of the pool; 1 without one
  bool on_gpu() const { return kernels.gpu.sm != 0; }
  // Zeroed memory for what ops read and write: the host's, or the GPU's.
  Buffer allocate(int64_t bytes) const;
  // A copy of host memory, where ops read.
  Buffer copy_of(const void* data, int64_t bytes) const;
  // `t` as host memory, bf16 as float32: `t` itself, or a copy in `memory` after waiting for the
  // GPU.
  Tensor on_host(const Tensor& t, Buffer& memory) const;

  // Makes `site` the one that runs; false where a profile leaves it out. Of what is no site, by its
  // label.
  bool begin(const Site& site);
  bool begin(const std::string& label);
  std::function<void(const char* label)> on_op = {};  // told before each site; for profiles
  // In front of labels, of what runs beside the steps: "draft/", "replay/".
  std::string whose = {};
  // For profiles: the site of this label, or all of this op ("moe_up", or "draft"), do nothing:
  // what they write stays as it was.
  std::string left_out = {};
  std::string last_op() const;  // the label of the site that was begun last

  const Site* site = nullptr;  // that runs, or ran last; none where a row is run by itself

  // Set by the model for the time of a step.
  // Working memory within one op, on the device; what moe_down leaves to a norm (LeftChoices) lies
  // at its end until that has begun.
  std::span<std::byte> scratch = {};
  // On GPUs: kNumCounters words that are zero between kernels; who counts in them leaves them so.
  static constexpr int kNumCounters = 1 << 16;
  uint32_t* counters = nullptr;
  // On GPUs: what norm_qkv leaves to attention.
  LeftHeads left_heads = {};
};

}  // namespace nibble::ops
