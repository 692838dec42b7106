#include "ops/cpu_matmul/bf16_kernels.h"

#include <gtest/gtest.h>

#include <limits>

#include "ops/cpu_matmul/product.h"
#include "ops/matmul_ref.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

// What a machine may have to multiply weights of `format` by.
struct Here {
  Format format;
  cpu::Isa isa;
};
std::vector<Here> all_here() {
  std::vector<Here> all;
  for (const Format format :
       {Format::kBF16, Format::kMxfp8, Format::kNvfp4, Format::kFp8Row, Format::kFp8Block})
    for (const cpu::Isa isa : {cpu::Isa::kAvx512Bf16, cpu::Isa::kAmx}) all.push_back({format, isa});
  std::erase_if(all, [](const Here& h) { return !cpu::supports(cpu::detect_isa(), h.isa); });
  return all;
}

template <typename Product>
std::vector<float> multiply(const Here& here, const TestWeight& w, const Floats& x) {
  const int64_t tokens = x.shape[0];
  const ProductSize size{w.view.format, w.view.cols, tokens, tokens, 1, 2};
  Scratch counted;
  Product(nullptr, counted, size);
  TestCtx test(DType::kF32, counted.used_bytes());
  Scratch scratch(test.cx.scratch);
  Product product(&Product::kernels(here.isa), scratch, size);
  std::vector<float> y(tokens * w.view.rows, std::numeric_limits<float>::quiet_NaN());
  linear(test.cx, product, y.data(), x.values.data(), tokens, w.view);
  return y;
}
std::vector<float> multiply(const Here& here, const TestWeight& w, const Floats& x) {
  return here.format == Format::kBF16 ? multiply<Bf16RowProduct>(here, w, x)
                                      : multiply<Bf16Product>(here, w, x);
}

// Products of bf16 are exact; a sum over K rounds K times, each by up to a whole unit. (The twin
// rounds each weight times the scale of its row.)
void check(const Here& here, int64_t rows, int64_t cols, int64_t tokens,
           uint8_t largest_scale = 0) {
  Random random(static_cast<uint32_t>(rows + tokens));
  TestWeight w(random, here.format, 1, rows, cols);
  if (here.format == Format::kMxfp8 && largest_scale > 0) w.scales[0] = largest_scale;
  if (here.format != Format::kBF16) w.pack(Layout::kPanels16);
  Floats x(random, tokens, cols), seen = x;
  for (float& v : seen.values) v = bf16_to_float(bf16_from_float(v));
  const std::vector<float> y = multiply(here, w, x);
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
    const std::vector<float> alone = multiply(here, w, one);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), y.begin() + t * rows)) << t;
  }
}

TEST(Bf16Kernels, EveryShapeEqualsTheTwinAndItselfAlone) {
  if (all_here().empty()) GTEST_SKIP() << "needs fast AVX-512 BF16 or AMX";
  for (const Here& here : all_here())
    for (const int64_t tokens : {1, 2, 3, 4, 5, 16, 17, 40}) {
      SCOPED_TRACE(cpu::isa_name(here.isa));
      check(here, 80, 352, tokens);  // 16 rows behind the 64 of a run
      check(here, 16, 32, tokens);
      check(here, 16, 2144, tokens);  // 67 steps of 32
      check(here, 48, 64, tokens);
      check(here, 16, 64, tokens, 247);  // a scale of 2^120
    }
}

TEST(Bf16Kernels, DamageStaysInItsRowAndItsToken) {
  if (all_here().empty()) GTEST_SKIP() << "needs fast AVX-512 BF16 or AMX";
  for (const Here& here : all_here()) {
    Random random(3);
    TestWeight w(random, here.format, 1, 32, 128);
    if (here.format != Format::kBF16) {
      // One block of row 20, or the row.
      if (here.format == Format::kMxfp8)
        w.scales[4 * 20] = 255;
      else if (here.format == Format::kFp8Block)
        w.scales[4 * 20 + 2] = 0x80, w.scales[4 * 20 + 3] = 0x7f;  // infinity
      else
        w.row_scales[20] = std::numeric_limits<float>::quiet_NaN();
      w.pack(Layout::kPanels16);
    } else {
      w.codes[2 * 128 * 20 + 1] = 0x7f, w.codes[2 * 128 * 20] = 0xc0;  // its first value: NaN
    }
    for (const int64_t tokens : {2, 7}) {
      Floats x(random, tokens, 128);
      x.values[128 + 40] = std::numeric_limits<float>::infinity();
      const std::vector<float> y = multiply(here, w, x);
      for (int t = 0; t < tokens; ++t)
        for (int n = 0; n < 32; ++n)
          EXPECT_EQ(!std::isfinite(y[t * 32 + n]), n == 20 || t == 1) << t << " " << n;
    }
  }
}

}  // namespace
}  // namespace nibble::ops
