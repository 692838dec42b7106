#include "ops/blocked/bf16_kernels.h"

#include <gtest/gtest.h>

#include <limits>

#include "ops/linear/linear_ref.h"
#include "ops/linear/product.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

bool here() { return cpu::supports(cpu::detect_isa(), cpu::Isa::kAvx512Bf16); }

std::vector<float> multiply(const TestWeight& w, const Floats& x) {
  const int64_t tokens = x.shape[0];
  const ProductSize size{w.view.format, w.view.cols, tokens, tokens, 1, 2};
  Scratch counted;
  Bf16Product(nullptr, counted, size);
  TestCtx test(DType::kF32, counted.used_bytes());
  Scratch scratch(test.cx.scratch);
  Bf16Product product(&bf16_kernels(cpu::Isa::kAvx512Bf16), scratch, size);
  std::vector<float> y(tokens * w.view.rows, std::numeric_limits<float>::quiet_NaN());
  linear(test.cx, product, y.data(), x.values.data(), tokens, w.view);
  return y;
}

// Products of bf16 are exact; a sum over K rounds K times, each by up to a whole unit.
void check(int64_t rows, int64_t cols, int64_t tokens, uint8_t largest_scale = 0) {
  Random random(static_cast<uint32_t>(rows + tokens));
  TestWeight w(random, Format::kMxfp8, 1, rows, cols);
  if (largest_scale > 0) w.scales[0] = largest_scale;
  w.pack(Layout::kPanels16);
  Floats x(random, tokens, cols), seen = x;
  for (float& v : seen.values) v = bf16_to_float(bf16_from_float(v));
  const std::vector<float> y = multiply(w, x);
  for (int64_t n = 0; n < rows; ++n) {
    const ref::Row twin(w.view, 0, n);
    for (int64_t t = 0; t < tokens; ++t) {
      double abs;
      const double want = twin.dot(seen.row(t), &abs);
      ASSERT_NEAR(y[t * rows + n], want, 2 * static_cast<double>(cols + 1) * kEps * abs)
          << t << " " << n;
    }
  }
  for (const int64_t t : {int64_t{0}, tokens / 2, tokens - 1}) {
    Floats one(1, cols);
    one.values.assign(x.row(t), x.row(t) + cols);
    const std::vector<float> alone = multiply(w, one);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), y.begin() + t * rows)) << t;
  }
}

TEST(Bf16Kernels, EveryShapeEqualsTheTwinAndItselfAlone) {
  if (!here()) GTEST_SKIP() << "needs fast AVX-512 BF16";
  for (const int64_t tokens : {1, 2, 3, 4, 5, 16, 17, 40}) {
    check(80, 352, tokens);  // one panel behind the four of a run
    check(16, 32, tokens);
    check(48, 64, tokens);
    check(16, 64, tokens, 247);  // a scale of 2^120
  }
}

TEST(Bf16Kernels, DamageStaysInItsRowAndItsToken) {
  if (!here()) GTEST_SKIP() << "needs fast AVX-512 BF16";
  Random random(3);
  TestWeight w(random, Format::kMxfp8, 1, 32, 128);
  w.scales[4 * 20] = 255;  // one block of row 20
  w.pack(Layout::kPanels16);
  Floats x(random, 7, 128);
  x.values[2 * 128 + 40] = std::numeric_limits<float>::infinity();
  const std::vector<float> y = multiply(w, x);
  for (int t = 0; t < 7; ++t)
    for (int n = 0; n < 32; ++n)
      EXPECT_EQ(!std::isfinite(y[t * 32 + n]), n == 20 || t == 2) << t << " " << n;
}

}  // namespace
}  // namespace nibble::ops
