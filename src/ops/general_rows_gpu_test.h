// Which rows general_rows_gpu_test.cc tests, random shapes for them, and how they are compared.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>

#include "ops/gpu_matmul/gemv_gpu_test.h"
#include "ops/gpu_test_problem.h"
#include "ops/matmul_ref.h"
#include "ops/wrong_blocks.h"

namespace nibble::ops {

// Of a sum of n products over its terms' magnitudes: weights and activations are exact, sums are
// float32, which tensor cores truncate (twice the error of rounding); eight segments are added.
inline double sum_error(int64_t n) { return 2 * (n + 16) * kEps; }

// Which rows are tested, with weights of what format; rows for tiles ask for whole ones.
struct Tested {
  Format format = Format::kBF16;
  std::string row = "cuda_any";
  bool exact = true;
  bool of_gb10 = false;  // a row that this GPU runs and a GB10 takes
  bool is_general() const { return row == "cuda_any"; }
  // Of a product of n terms, over their magnitudes.
  double product_error(int64_t n) const { return sum_error(n) + weight_error(format, row); }
  bool is_unit_one() const { return row.ends_with("_one"); }
  bool may_be_by_digits() const { return is_unit_one() || (row == "cuda_nvfp4_decode" && !exact); }
};

// A weight's row times x, n values, and the magnitudes that tested.product_error() allows for. By
// digits an activation is an integer times at most 2^-13 of its 16 k's largest: off by half of
// that.
inline double dot_of(const Tested& tested, const ref::Row& row, const float* x, int64_t n,
                     double* abs) {
  const double want = row.dot(x, abs);
  if (!tested.may_be_by_digits()) return want;
  double off;
  row.dot(block_maxima(x, n, 16).data(), &off);
  *abs += 0x1p-14 * off / tested.product_error(n);
  return want;
}

// 1 to `most`; whole blocks where the format has no others.
inline int64_t random_cols(Random& random, const Tested& tested, int64_t most) {
  const int64_t block = !tested.is_general() ? std::max(64, format_row(tested.format).block_elems)
                        : tested.format == Format::kFp8Block
                            ? 1
                            : format_row(tested.format).block_elems;
  return block * (1 + random.below(most / block));
}
// 1 to `most`.
inline int64_t random_rows(Random& random, const Tested& tested, int64_t most) {
  const int64_t multiple = tested.is_general() ? 1 : 16;
  return multiple * (1 + random.below(most / multiple));
}
// Few and many tokens: of both forms of the product, tiles that end early, one.
inline int64_t random_tokens(Random& random, const Tested& tested) {
  if (tested.is_unit_one()) return 1;
  constexpr int64_t kMost[] = {1, 8, 24, 70, 200};
  return 1 + random.below(kMost[random.below(5)]);
}

// The row tested, with `w` as it reads it; nullptr where the op has none for so many tokens.
template <typename Desc, typename Fn>
const Kernel<Desc, Fn>* tested_row(std::span<const Kernel<Desc, Fn>> table, const Desc& desc,
                                   KernelOptions options, const Tested& tested, TestWeight& w) {
  options.any_size = true;
  if (tested.of_gb10) options.gpu = cuda::gb10();
  for (const auto& row : table) {
    if (tested.row != row.name) continue;
    const bool serves = row.refuse(desc, options) == nullptr;
    if (tested.is_general()) CHECK(serves && row.layout == Layout::kRows);
    if (!serves) return nullptr;
    CHECK(row.run != nullptr);
    w.pack(row.layout);
    return &row;
  }
  return nullptr;
}

inline Tensor row_of(const Tensor& x, int64_t t) {
  return make_tensor(static_cast<uint8_t*>(x.data) + t * x.dim(1) * dtype_bytes(x.dtype), x.dtype,
                     {1, x.dim(1)});
}

// Each element within its bound, and no block of columns wrong.
struct Compared {
  explicit Compared(int64_t cols) : blocks(cols) {}
  void add(int64_t t, int64_t n, double got, double want, double error) {
    ASSERT_NEAR(got, want, error) << "token " << t << " row " << n;
    blocks.add(t, n, got, want);
  }
  ~Compared() { EXPECT_LT(blocks.worst(), 1); }
  WrongBlocks blocks;
};

}  // namespace nibble::ops
