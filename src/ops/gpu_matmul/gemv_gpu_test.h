// For tests of the few-token CUDA products: the error they may make.
#pragma once

#include <cmath>
#include <string_view>
#include <vector>

#include "ops/gpu_matmul/unit_one.h"
#include "ops/gpu_test_problem.h"
#include "ops/matmul_ref.h"

namespace nibble::ops {

// Largest magnitude of each block of values, in the place of each.
inline std::vector<float> block_maxima(const float* x, int64_t n, int64_t block = 32) {
  std::vector<float> most(n);
  for (int64_t k = 0; k < n; ++k)
    for (int64_t i = k / block * block; i < std::min(n, (k / block + 1) * block); ++i)
      most[k] = std::max(most[k], std::fabs(x[i]));
  return most;
}

// What a row multiplies for h = norm(y), with `rows` rows of weights: unit_one.cuh, where the norm
// is in front, rounds what lacks the factor of all columns, and multiplies sums by that.
inline std::vector<float> multiplied_h(std::string_view row, const cuda::Caps& caps, int64_t rows,
                                       const float* h, const float* y, const Norm& norm,
                                       int64_t n) {
  std::vector<float> x(h, h + n);
  if (!row.ends_with("_one") ||
      !gpu::plan_unit_one({gpu::OneWork::kDense, rows, n, 1, /*has_norm=*/true}, caps))
    return x;
  double squares = 0;
  for (int64_t k = 0; k < n; ++k) squares += double{y[k]} * y[k];
  const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + norm.eps);
  for (int64_t k = 0; k < n; ++k) {
    const float unscaled = y[k] * (norm.offset + bf16_to_float(norm.weight[k]));
    x[k] = static_cast<float>(bf16_to_float(bf16_from_float(unscaled)) * factor);
  }
  return x;
}

// Of one sum of n products, whose exact value is *want. MXFP4: an activation becomes an integer
// times a scale that is at most 2^-13 of its block's largest, so it is off by half of that; then
// float32 sums over blocks. BF16: float32 sums of all terms, which tensor cores truncate (twice the
// error).
inline double gemv_error(const ref::Row& row, const float* x, const std::vector<float>& maxima,
                         Format format, double* want) {
  const auto n = static_cast<int64_t>(maxima.size());
  double abs, most;
  *want = row.dot(x, &abs);
  if (format == Format::kBF16) return 2 * (n + 8) * kEps * abs;
  row.dot(maxima.data(), &most);
  return 0x1p-14 * most + (n / 32 + 8) * kEps * abs;
}

// The same of the "_narrow" rows. Each wgmma adds 32 products to what it has, in places that end 13
// bits below the largest, and no partial sum is larger than all magnitudes together; an activation
// is the sum of two, of which the second is at most a sixteenth, off by 2^-22 of the row's largest.
inline double narrow_error(const ref::Row& row, const float* x, int64_t n, double* want) {
  float largest = 0;
  for (int64_t k = 0; k < n; ++k) largest = std::max(largest, std::fabs(x[k]));
  double abs, most;
  *want = row.dot(x, &abs);
  row.dot(std::vector<float>(n, largest).data(), &most);
  return (n + 31) / 32 * 0x1p-13 * 1.125 * abs + 0x1p-22 * most + 4 * kEps * abs;
}

// The few-token rows that serve a problem, their weight in the layout they read.
template <typename Desc, typename Fn>
std::vector<const Kernel<Desc, Fn>*> gemv_rows(std::span<const Kernel<Desc, Fn>> table,
                                               const Desc& desc, const KernelOptions& options,
                                               TestWeight& w) {
  std::vector<const Kernel<Desc, Fn>*> rows;
  for (const auto& row : table)
    if (std::string_view(row.name).ends_with("_decode") && row.refuse(desc, options) == nullptr)
      rows.push_back(&row);
  CHECK(rows.size() == 1);
  if (rows[0]->layout != w.view.layout) w.pack(rows[0]->layout);
  return rows;
}

// The same with the rows for more tokens, named "..." + suffix: "_narrow"; and those that keep the
// tolerance of these: "_gemm", and "_batch", whose float32 sums in tensor cores are off by 72
// roundings of all terms at most (two truncated sums of 17 terms a block), an eighth of what digits
// are.
template <typename Desc, typename Fn>
std::vector<const Kernel<Desc, Fn>*> gemv_rows_and(std::string_view suffix,
                                                   std::span<const Kernel<Desc, Fn>> table,
                                                   const Desc& desc, const KernelOptions& options,
                                                   TestWeight& w) {
  std::vector<const Kernel<Desc, Fn>*> rows = gemv_rows(table, desc, options, w);
  for (const auto& row : table)
    if (std::string_view(row.name).ends_with(suffix) && row.refuse(desc, options) == nullptr &&
        row.layout == w.view.layout)
      rows.push_back(&row);
  return rows;
}
// Whether a row's results are the same alone and in a batch.
template <typename Desc, typename Fn>
bool is_invariant(const Kernel<Desc, Fn>& row) {
  const std::string_view name = row.name;
  return name.ends_with("_decode") || name.ends_with("_each");
}

// Row t of an activation tensor [T, n] bf16 as a tensor [1, n].
inline Tensor one_row(const Tensor& x, int64_t t) {
  return make_tensor(x.as<uint16_t>() + t * x.dim(1), x.dtype, {1, x.dim(1)});
}

// Rows to check of many: all of few, else some of every row tile.
inline int64_t row_step(int64_t rows) { return rows <= 1024 ? 1 : 11; }

}  // namespace nibble::ops
