// For tests and benches of ops: random weights and activations, a context to run in, and the error
// bounds that the blocked float path is held to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cpu/thread_pool.h"
#include "formats/bf16.h"
#include "formats/fp8.h"
#include "formats/int4.h"
#include "formats/int8.h"
#include "formats/mxfp4.h"
#include "ops/ctx.h"
#include "ops/gpu_matmul/e2m1_rows.h"
#include "ops/gpu_matmul/e4m3_rows.h"
#include "ops/kernel_table.h"
#include "ops/routing.h"
#include "ops/swiglu.h"
#include "ops/weight.h"

namespace nibble::ops {

inline constexpr double kEps = 0x1p-24;  // of float32: half a unit in the last place

// Error of a float32 dot product of length n over the sum of its terms' magnitudes, at worst: each
// of 4 or more lanes rounds n / 4 times, the tree over the lanes and the bias a few times more.
// More than enough for int8 inputs, whose products round once per 32.
inline double dot_error(int64_t n) { return (n / 4.0 + 8) * kEps; }
// Relative error of a normed value: half the error of the mean of squares, and four roundings. As
// bf16, values near a rounding boundary may go either way: a whole unit, 2^-7.
inline double norm_error(DType act, int64_t n) {
  return dot_error(n) / 2 + 4 * kEps + (act == DType::kBF16 ? 0x1p-7 : 0);
}
// The error of swiglu that errors of gate and up cause: d(g sigmoid(alpha g))/dg is at most 1.1;
// then the division, the exponential and three products, 12 roundings of the result.
inline double swiglu_error(double gate, double gate_error, double up, double up_error,
                           const Swiglu& act) {
  const double limit = act.limit;
  const double g = std::min(gate, limit), v = std::clamp(up, -limit, limit);
  const double s = g / (1 + std::exp(-static_cast<double>(act.alpha) * g));
  const double factor = std::fabs(v) + act.shift;
  return 1.1 * (factor + up_error) * gate_error + std::fabs(s) * up_error +
         12 * kEps * std::fabs(s) * factor + 1e-30;
}
// What rounding to the activations' format adds to the error of a value: half a unit.
inline double store_error(DType act, double value) {
  return act == DType::kBF16 ? std::fabs(value) * 0x1p-8 : 0;
}

// gpt-oss's.
inline constexpr Swiglu kClampedSwiglu{.alpha = 1.702f, .shift = 1, .limit = 7};

class Random {
 public:
  explicit Random(uint32_t seed) : bits_(seed) {}
  float normal(float deviation = 1) { return std::normal_distribution<float>(0, deviation)(bits_); }
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(bits_); }
  uint8_t byte() { return static_cast<uint8_t>(bits_() >> 24); }
  std::vector<float> normals(int64_t n, float deviation = 1) {
    std::vector<float> v(n);
    for (float& x : v) x = normal(deviation);
    return v;
  }
  std::vector<uint16_t> bf16s(int64_t n, float deviation = 1, float mean = 0) {
    std::vector<uint16_t> v(n);
    for (uint16_t& x : v) x = bf16_from_float(mean + normal(deviation));
    return v;
  }

 private:
  std::mt19937 bits_;
};

// A weight with the bytes it looks at.
struct TestWeight {
  TestWeight(Random& random, Format format, int64_t experts, int64_t rows, int64_t cols,
             bool has_bias = true) {
    view = {.format = format, .experts = experts, .rows = rows, .cols = cols};
    const float deviation = 1 / std::sqrt(static_cast<float>(cols));
    const int64_t n = experts * rows;
    if (format == Format::kBF16) {
      put(random.bf16s(n * cols, deviation));
    } else if (format == Format::kF32) {
      put(random.normals(n * cols, deviation));
    } else if (format == Format::kF16) {
      codes.resize(2 * n * cols);  // exponents 7 to 10: 2^-8 to 2^-4
      for (size_t i = 0; i < codes.size(); i += 2)
        codes[i] = random.byte(),
        codes[i + 1] = static_cast<uint8_t>((random.byte() & 0x83) | (7 + random.below(4)) << 2);
    } else {
      fill_blocks(random, n, deviation);
    }
    if (has_bias) bias = random.bf16s(experts * rows, 0.5f);
    view.codes = codes.data();
    view.scales = scales.empty() ? nullptr : scales.data();
    view.row_scales = row_scales.empty() ? nullptr : row_scales.data();
    view.bias = has_bias ? bias.data() : nullptr;
  }
  TestWeight(const TestWeight&) = delete;

  template <typename T>
  void put(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    codes.assign(bytes, bytes + sizeof(T) * values.size());
  }

  // `n` rows of codes with scales.
  void fill_blocks(Random& random, int64_t n, float deviation) {
    const Format format = view.format;
    const bool is_fp4 = format == Format::kMxfp4 || format == Format::kNvfp4;
    codes.resize(n * view.row_code_bytes());
    scales.resize(n * view.row_scale_bytes());
    for (uint8_t& c : codes) c = is_fp4 ? random.byte() : e4m3_from_float(random.normal(16));
    const float unit = is_fp4 ? deviation / 2 : deviation / 16;  // of a code
    const int middle = 127 + std::ilogb(unit);
    const auto a_scale = [&](float of) { return of * (0.5f + 0.1f * random.below(10)); };
    if (format == Format::kNvfp4) {
      for (uint8_t& s : scales) s = static_cast<uint8_t>(0x30 + random.below(0x10));
    } else if (format == Format::kInt4G32 || format == Format::kInt4G128) {
      for (uint8_t& c : codes) c = random.byte();
      for (size_t i = 0; i < scales.size(); i += 4) {
        const Int4Group group{.scale = bf16_from_float(a_scale(deviation / 8)),
                              .zero = static_cast<uint8_t>(5 + random.below(6)),
                              .is_f16 = 0};
        std::memcpy(scales.data() + i, &group, 4);
      }
    } else if (format == Format::kFp8Block) {
      for (size_t i = 0; i < scales.size(); i += 4) {
        const float scale = a_scale(unit);
        std::memcpy(scales.data() + i, &scale, 4);
      }
    } else {
      for (uint8_t& s : scales) s = static_cast<uint8_t>(middle - 1 + random.below(3));
    }
    if (!format_row(format).row_scales) return;
    for (int64_t r = 0; r < n; ++r) row_scales.push_back(a_scale(unit));
  }

  // The same weight in another layout.
  void pack(Layout layout) {
    if (unpacked_codes.empty()) unpacked_codes = codes, unpacked_scales = scales;
    const int64_t rows = view.experts * view.rows;
    std::vector<uint8_t> to(rows * row_code_bytes(view.format, layout, view.cols));
    std::vector<uint8_t> to_scales(rows * row_scale_bytes(view.format, layout, view.cols));
    if (layout == Layout::kRows)
      to = unpacked_codes, to_scales = unpacked_scales;
    else
      pack_rows(view.format, layout, rows, view.cols,
                {unpacked_codes.data(), unpacked_scales.data()}, {to.data(), to_scales.data()});
    codes = std::move(to), scales = std::move(to_scales);
    view.layout = layout;
    view.codes = codes.data();
    view.scales = scales.empty() ? nullptr : scales.data();
  }

  std::vector<uint8_t> codes, scales;
  std::vector<float> row_scales;
  std::vector<uint8_t> unpacked_codes, unpacked_scales;  // in kRows, once packed
  std::vector<uint16_t> bias;
  Weight view;
};

// Owned float32 activations [rows, cols].
struct Floats {
  Floats(int64_t rows, int64_t cols) : values(rows * cols), shape{rows, cols} {}
  Floats(Random& random, int64_t rows, int64_t cols, DType act = DType::kF32)
      : values(random.normals(rows * cols)), shape{rows, cols} {
    if (act == DType::kBF16)
      for (float& v : values) v = bf16_to_float(bf16_from_float(v));
  }
  Tensor tensor() { return make_tensor(values.data(), DType::kF32, {shape[0], shape[1]}); }
  const float* row(int64_t r) const { return values.data() + r * shape[1]; }
  float at(int64_t r, int64_t c) const { return values[r * shape[1] + c]; }

  std::vector<float> values;
  int64_t shape[2];
};

// Where ops run in tests: two workers, and scratch at a cache line that starts as garbage.
struct TestCtx {
  explicit TestCtx(DType activations, int64_t scratch_bytes, int threads = 2)
      : pool(threads), scratch((scratch_bytes + 63) / 64, Line{}) {
    for (Line& line : scratch) std::fill_n(line.bytes, 64, std::byte{0xff});
    cx.pool = &pool;
    cx.activations = activations;
    if (!scratch.empty()) cx.scratch = {scratch[0].bytes, static_cast<size_t>(scratch_bytes)};
  }
  struct Line {
    alignas(64) std::byte bytes[64];
  };
  cpu::ThreadPool pool;
  std::vector<Line> scratch;
  Ctx cx;
};

struct TestRouting {
  TestRouting(int64_t tokens, int64_t experts, int64_t top_k)
      : ids(tokens * top_k),
        counts(experts),
        offsets(experts + 1),
        slot(tokens * top_k),
        token(tokens * top_k),
        p(tokens * top_k) {
    view = {.num_tokens = static_cast<int32_t>(tokens),
            .num_experts = static_cast<int32_t>(experts),
            .top_k = static_cast<int32_t>(top_k),
            .ids = ids.data(),
            .p = p.data(),
            .counts = counts.data(),
            .offsets = offsets.data(),
            .slot = slot.data(),
            .token = token.data()};
  }
  TestRouting(const TestRouting&) = delete;
  // Distinct random experts for each token; weights that sum to 1.
  void randomize(Random& random) {
    for (int64_t t = 0; t < view.num_tokens; ++t) {
      float sum = 0;
      for (int64_t k = t * view.top_k; k < (t + 1) * view.top_k; ++k) {
        const auto seen = [&](int32_t e) {
          return std::find(ids.begin() + t * view.top_k, ids.begin() + k, e) != ids.begin() + k;
        };
        do ids[k] = static_cast<int32_t>(random.below(view.num_experts));
        while (seen(ids[k]));
        sum += p[k] = 0.1f + std::fabs(random.normal());
      }
      for (int64_t k = t * view.top_k; k < (t + 1) * view.top_k; ++k) p[k] /= sum;
    }
    sort_by_expert(view);
  }
  std::vector<int32_t> ids, counts, offsets, slot, token;
  std::vector<float> p;
  Routing view;
};

// Rows of a table that run here, the twin left out. There is always one: a test over none would
// show nothing.
template <typename Desc, typename Fn>
std::vector<const Kernel<Desc, Fn>*> kernels_here(std::span<const Kernel<Desc, Fn>> table,
                                                  const Desc& desc,
                                                  const KernelOptions& options = {}) {
  std::vector<const Kernel<Desc, Fn>*> rows;
  for (const auto& row : table)
    if (row.run != nullptr && row.refuse(desc, options) == nullptr) rows.push_back(&row);
  CHECK(!rows.empty());  // a test of none would pass
  return rows;
}

// Whether this machine has products of such activations at all.
inline bool runs_here(ActFormat activations) {
  const auto has = [](cpu::Isa isa) { return cpu::supports(cpu::detect_isa(), isa); };
  if (activations == ActFormat::kInt8) return has(cpu::Isa::kAvx2) || has(cpu::Isa::kNeonDot);
  return activations != ActFormat::kInt8Row || has(cpu::Isa::kAvx512Vnni);
}

// What a row rounds the inputs of its product to, by its name, where they may be int8.
inline ActFormat rounded_by(std::string_view row, ActFormat activations) {
  if (activations != ActFormat::kInt8 && activations != ActFormat::kInt8Row) return activations;
  const auto has = [&](std::string_view part) { return row.find(part) != std::string_view::npos; };
  if (has("int8row")) return ActFormat::kInt8Row;
  if (has("int8")) return ActFormat::kInt8;
  return has("bf16") ? ActFormat::kBF16 : ActFormat::kFloat;
}

// Error of a dot product of inputs that are rounded so: a sum of bf16 products rounds each time, by
// up to a whole unit.
inline double dot_error(int64_t n, ActFormat rounded) {
  return rounded == ActFormat::kBF16 ? 2 * static_cast<double>(n + 1) * kEps : dot_error(n);
}

// Those that round the inputs of products, of what `activations` allow.
template <typename Desc, typename Fn>
std::vector<const Kernel<Desc, Fn>*> kernels_here(std::span<const Kernel<Desc, Fn>> table,
                                                  const Desc& desc, ActFormat activations) {
  KernelOptions options;
  options.activations = activations;
  auto rows = kernels_here(table, desc, options);
  if (activations != ActFormat::kFloat)
    std::erase_if(rows, [&](const auto* row) {
      return rounded_by(row->name, activations) == ActFormat::kFloat;
    });
  return rows;
}

// What a product with `weights` makes of its inputs [rows, K]: as they are, or to bf16, int8, E4M3
// or E2M1 and back, with one rounding of float32.
inline Floats as_input(const Floats& x, ActFormat rounded, Format weights = Format::kMxfp4) {
  Floats seen = x;
  if (rounded == ActFormat::kFp4) rounded = rounded_inputs(rounded, weights);
  if (rounded == ActFormat::kFp4) {
    for (int64_t r = 0; r < x.shape[0]; ++r)
      round_to_e2m1(seen.values.data() + r * x.shape[1], x.shape[1], weights);
    return seen;
  }
  if (rounded == ActFormat::kFp8) {
    for (int64_t r = 0; r < x.shape[0]; ++r)
      round_to_e4m3(seen.values.data() + r * x.shape[1], x.shape[1], /*scale=*/0);
    return seen;
  }
  if (rounded == ActFormat::kBF16)
    for (float& v : seen.values) v = bf16_to_float(bf16_from_float(v));
  if (rounded != ActFormat::kInt8 && rounded != ActFormat::kInt8Row) return seen;
  const int64_t group = rounded == ActFormat::kInt8 ? kInt8BlockElems : x.shape[1];
  CHECK(x.shape[1] % group == 0);
  std::vector<int8_t> q(group);
  for (size_t at = 0; at < seen.values.size(); at += group) {
    float* values = seen.values.data() + at;
    const float step = int8_encode(values, group, q.data());
    for (int64_t i = 0; i < group; ++i) values[i] = step * static_cast<float>(q[i]);
  }
  return seen;
}

}  // namespace nibble::ops
