// For tests of CUDA rows: copies of a test's problem on the GPU, outputs that start as garbage, and
// what came out, back on the host. Everything lives until its GpuProblem ends.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "ops/step.h"
#include "ops/test_problem.h"

namespace nibble::ops {

// The most activations of a case: NIBBLE_SMALL_TESTS says how many under tools that slow kernels
// down a hundredfold (tools/gpu_run.sh sanitize).
inline int64_t most_activations() {
  const char* text = std::getenv("NIBBLE_SMALL_TESTS");
  return text == nullptr ? std::numeric_limits<int64_t>::max() : std::atoll(text);
}

// Whether a case of so many activations is left out.
inline bool is_too_slow(int64_t activations) { return activations > most_activations(); }

// Of a step's tokens, every so many are also run alone: `step`, or under such tools the first one.
inline int64_t alone_step(int64_t tokens, int64_t step = 1) {
  return std::getenv("NIBBLE_SMALL_TESTS") == nullptr ? step : std::max<int64_t>(1, tokens);
}

// Of a product's terms: where a block's scale is any float32, GEMMs round weights to bf16
// (gpu_matmul/unit.cuh), from 16 bits of the scale.
inline double weight_error(Format format, std::string_view row) {
  const bool is_rounded =
      format == Format::kFp8Block || format == Format::kInt4G32 || format == Format::kInt4G128;
  return is_rounded && (row.starts_with("sm90") || row.ends_with("_gemm")) ? 0x1p-8 + 0x1p-15 : 0;
}

class GpuProblem {
 public:
  Ctx cx;  // on the GPU, activations bf16

  explicit GpuProblem(int64_t scratch_bytes = 0, bool exact = false) {
    cx.kernels.gpu = cuda::open_device();
    cx.kernels.exact = exact;
    cx.activations = DType::kBF16;
    cx.stream = stream_.handle();
    if (scratch_bytes > 0)
      cx.scratch = {static_cast<std::byte*>(garbage(scratch_bytes)),
                    static_cast<size_t>(scratch_bytes)};
    const std::vector<uint32_t> zeros(Ctx::kNumCounters);
    cx.counters = const_cast<uint32_t*>(array(zeros));
  }

  // Copies of host data.
  template <typename T>
  const T* array(const std::vector<T>& from) {
    return from.empty() ? nullptr : array(from.data(), static_cast<int64_t>(from.size()));
  }
  template <typename T>
  const T* array(const T* from, int64_t n) {
    void* to = memory(n * static_cast<int64_t>(sizeof(T)));
    cuda::copy(to, from, n * static_cast<int64_t>(sizeof(T)));
    return static_cast<const T*>(to);
  }
  Weight weight(const TestWeight& from) {
    Weight w = from.view;
    w.codes = array(from.codes);
    w.scales = array(from.scales);
    w.row_scales = array(from.row_scales);
    w.bias = array(from.bias);
    return w;
  }
  // As kF32 or rounded to kBF16.
  Tensor tensor(const Floats& from, DType dtype) {
    Tensor t = make_tensor(nullptr, dtype, {from.shape[0], from.shape[1]});
    if (dtype == DType::kF32) {
      t.data = const_cast<float*>(array(from.values));
    } else {
      std::vector<uint16_t> bits;
      for (const float v : from.values) bits.push_back(bf16_from_float(v));
      t.data = const_cast<uint16_t*>(array(bits));
    }
    return t;
  }
  // Any tensor on the host.
  Tensor tensor(const Tensor& from) {
    Tensor t = from;
    t.data = const_cast<uint8_t*>(array(static_cast<const uint8_t*>(from.data), from.size_bytes()));
    return t;
  }
  Routing routing(const TestRouting& from) {
    Routing r = from.view;
    r.ids = const_cast<int32_t*>(array(from.ids));
    r.p = const_cast<float*>(array(from.p));
    r.counts = const_cast<int32_t*>(array(from.counts));
    r.offsets = const_cast<int32_t*>(array(from.offsets));
    r.slot = const_cast<int32_t*>(array(from.slot));
    r.token = const_cast<int32_t*>(array(from.token));
    return r;
  }
  // Arrays that are null stay so.
  Step step(const Step& from) {
    Step s = from;
    if (s.tokens != nullptr) s.tokens = array(from.tokens, from.num_tokens);
    if (s.positions != nullptr) s.positions = array(from.positions, from.num_tokens);
    if (s.spans != nullptr) s.spans = array(from.spans, from.num_spans);
    if (s.out_rows != nullptr) s.out_rows = array(from.out_rows, from.num_out);
    return s;
  }
  KvLayer kv(const KvLayer& from, int64_t slots) {
    KvLayer to = from;
    to.k = tensor(from.k);
    to.v = tensor(from.v);
    to.page_table = array(from.page_table, slots * from.max_pages);
    return to;
  }

  // Outputs: NaNs and impossible indices until a kernel writes them.
  Tensor output(DType dtype, std::initializer_list<int64_t> shape) {
    Tensor t = make_tensor(nullptr, dtype, shape);
    t.data = garbage(t.size_bytes());
    return t;
  }
  Routing routing_output(const TestRouting& like) {
    Routing r = routing(like);
    const int64_t choices = int64_t{r.num_tokens} * r.top_k;
    for (void* p : {static_cast<void*>(r.ids), static_cast<void*>(r.p), static_cast<void*>(r.slot),
                    static_cast<void*>(r.token)})
      cuda::fill(p, kGarbage, 4 * choices);
    cuda::fill(r.counts, kGarbage, 4 * r.num_experts);
    cuda::fill(r.offsets, kGarbage, 4 * (r.num_experts + 1));
    return r;
  }

  // Waits for the kernels, then copies back. bf16 widens to float32.
  Floats floats(const Tensor& from) {
    CHECK(from.rank == 2);
    Floats to(from.shape[0], from.shape[1]);
    if (from.dtype == DType::kF32) {
      to.values = values<float>(from.data, from.num_elements());
    } else {
      const std::vector<uint16_t> bits = values<uint16_t>(from.data, from.num_elements());
      for (size_t i = 0; i < bits.size(); ++i) to.values[i] = bf16_to_float(bits[i]);
    }
    return to;
  }
  template <typename T>
  std::vector<T> values(const void* from, int64_t n) {
    std::vector<T> to(n);
    stream_.wait();
    if (n > 0) cuda::copy(to.data(), from, n * static_cast<int64_t>(sizeof(T)));
    return to;
  }
  std::vector<uint8_t> bytes(const Tensor& from) {
    return values<uint8_t>(from.data, from.size_bytes());
  }
  void read_back(TestRouting& to, const Routing& from) {
    const int64_t choices = int64_t{from.num_tokens} * from.top_k;
    to.ids = values<int32_t>(from.ids, choices);
    to.p = values<float>(from.p, choices);
    to.counts = values<int32_t>(from.counts, from.num_experts);
    to.offsets = values<int32_t>(from.offsets, from.num_experts + 1);
    to.slot = values<int32_t>(from.slot, choices);
    to.token = values<int32_t>(from.token, choices);
    to.view.ids = to.ids.data(), to.view.p = to.p.data();
    to.view.counts = to.counts.data(), to.view.offsets = to.offsets.data();
    to.view.slot = to.slot.data(), to.view.token = to.token.data();
  }
  // Whether the kernels left every counter at zero, as the next one expects.
  bool counters_are_zero() {
    const std::vector<uint32_t> all = values<uint32_t>(cx.counters, Ctx::kNumCounters);
    return std::all_of(all.begin(), all.end(), [](uint32_t n) { return n == 0; });
  }

 private:
  static constexpr uint8_t kGarbage = 0xff;  // NaN in float32 and bf16, -1 in int32

  void* memory(int64_t bytes) {
    owned_.push_back(cuda::device_buffer(bytes));
    return owned_.back().data();
  }
  void* garbage(int64_t bytes) {
    void* data = memory(bytes);
    cuda::fill(data, kGarbage, bytes);
    return data;
  }

  std::vector<Buffer> owned_;
  cuda::Stream stream_;
};

}  // namespace nibble::ops
