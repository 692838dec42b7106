#include "ops/cpu_matmul/int8_row_kernels.h"

#include <gtest/gtest.h>

#include <limits>

#include "ops/cpu_matmul/product.h"
#include "ops/matmul_ref.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

// Products of x by w: on VNNI, on emulated tiles, and on tiles where the machine has them.
std::vector<std::vector<float>> multiply(const TestWeight& w, const Floats& x) {
  std::vector<std::vector<float>> all;
  if (!cpu::supports(cpu::detect_isa(), cpu::Isa::kAvx512Vnni)) return all;
  const int64_t tokens = x.shape[0];
  const ProductSize size{Format::kMxfp4, w.view.cols, tokens, tokens, 1, 2};
  Scratch counted;
  Int8RowProduct(nullptr, counted, size);
  TestCtx test(DType::kF32, counted.used_bytes());
  const auto run = [&](const Int8RowKernels& kernels) {
    Scratch scratch(test.cx.scratch);
    Int8RowProduct product(&kernels, scratch, size);
    std::vector<float> y(tokens * w.view.rows, std::numeric_limits<float>::quiet_NaN());
    linear(test.cx, product, y.data(), x.values.data(), tokens, w.view);
    all.push_back(std::move(y));
  };
  run(int8_row_kernels(cpu::Isa::kAvx512Vnni));
  run(emulated_int8_row_kernels());
  if (cpu::supports(cpu::detect_isa(), cpu::Isa::kAmx)) run(int8_row_kernels(cpu::Isa::kAmx));
  return all;
}

// x to int8 with one step per row, and back.
Floats as_rows(const Floats& x) {
  Floats seen = x;
  std::vector<int8_t> q(x.shape[1]);
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    const float step = int8_encode(x.row(t), x.shape[1], q.data());
    for (int64_t k = 0; k < x.shape[1]; ++k)
      seen.values[t * x.shape[1] + k] = step * static_cast<float>(q[k]);
  }
  return seen;
}

// `row` gets `passes` groups of exponents, 7 apart.
void widen(TestWeight& w, int64_t row, int passes) {
  const int64_t blocks = w.view.cols / 32;
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t& e = w.scales[row * blocks + b];
    e = static_cast<uint8_t>(e + 7 * (b % passes) - 14);
  }
}

// Every block of every row has an exponent of its own, `spread` apart at most: passes begin and end
// in different rows of a panel.
void widen_all(TestWeight& w, Random& random, int64_t spread) {
  for (uint8_t& e : w.scales) e = static_cast<uint8_t>(e - random.below(spread));
}

void check_product(const TestWeight& w, int64_t tokens, Random& random) {
  const int64_t rows = w.view.rows, cols = w.view.cols;
  Floats x(random, tokens, cols);
  x.values[cols - 1] = 12;  // an outlier of token 0
  const Floats seen = as_rows(x);
  const std::vector<std::vector<float>> all = multiply(w, x);
  for (const std::vector<float>& y : all) {
    EXPECT_EQ(y, all[0]);  // whatever the instructions
    // Sums are whole; four roundings are left, and those of `seen`. Wide panels: one
    // per pass.
    for (int64_t n = 0; n < rows; ++n) {
      const ref::Row twin(w.view, 0, n);
      for (int64_t t = 0; t < tokens; ++t) {
        double abs;
        const double want = twin.dot(seen.row(t), &abs);
        ASSERT_NEAR(y[t * rows + n], want, static_cast<double>(cols / 32 + 4) * kEps * abs)
            << t << " " << n;
      }
    }
    // A token has the same bits alone: on VNNI, where a batch goes through tiles.
    for (const int64_t t : {int64_t{0}, tokens / 2, tokens - 1}) {
      Floats one(1, cols);
      one.values.assign(x.row(t), x.row(t) + cols);
      for (const std::vector<float>& alone : multiply(w, one))
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), y.begin() + t * rows)) << t;
    }
  }
}

// Without passes: all weights take one.
void check(int64_t rows, int64_t cols, int64_t tokens, int64_t wide_row, int passes = 1) {
  Random random(static_cast<uint32_t>(tokens));
  TestWeight w(random, Format::kMxfp4, 1, rows, cols);
  if (passes > 1) widen(w, wide_row, passes);
  w.pack(Layout::kPanels16);
  EXPECT_EQ(count_wide_panels(w.view), passes > 1 ? 1 : 0);
  check_product(w, tokens, random);
}

// The largest spread of the exponents of a row of a panel.
int spread_of(const std::vector<uint8_t>& scales) {
  int most = 0;
  for (size_t i = 0; i < scales.size(); ++i)
    for (size_t j = i % 16; j < scales.size(); j += 16)
      most = std::max(most, int{scales[i]} - int{scales[j]});
  return most;
}

class Int8RowKernels : public testing::Test {
  void SetUp() override {
    if (!runs_here(ActFormat::kInt8Row)) GTEST_SKIP() << "needs AVX-512 VNNI";
  }
};

TEST_F(Int8RowKernels, EveryShapeEqualsTheTwinAndItselfAlone) {
  for (const int64_t tokens : {1, 2, 3, 4, 5, 16, 17, 33, 48, 64, 65, 80, 97, 290})
    check(80, 704, tokens, -1);  // 11 steps: a chunk of 9 and one of 2; 5 panels
  for (const int64_t tokens : {1, 3, 5, 70}) check(16, 64, tokens, -1);
}

TEST_F(Int8RowKernels, WidePanelsTakeMorePasses) {
  for (const int64_t tokens : {1, 2, 3, 5, 9, 17, 64, 70, 97}) {
    for (const int passes : {2, 3, 6}) check(64, 192, tokens, 17, passes);  // one panel of four
    check(16, 64, tokens, 3, 2);
  }
}

TEST_F(Int8RowKernels, RowsOfAPanelPartWhereTheyLike) {
  for (const int64_t tokens : {1, 2, 5, 9, 17, 64, 70, 97})
    for (const int64_t spread : {5, 9, 17, 60}) {
      Random random(static_cast<uint32_t>(tokens + spread));
      TestWeight w(random, Format::kMxfp4, 1, 80, 192);
      widen_all(w, random, spread);
      w.pack(Layout::kPanels16);
      check_product(w, tokens, random);
    }
}

TEST_F(Int8RowKernels, BasesTakeEachBlockOfARowOnce) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t blocks = 1 + random.below(6);
    std::vector<uint8_t> scales(16 * blocks);
    const uint32_t least = random.below(256), spread = 1 + random.below(round % 2 ? 24 : 256);
    for (uint8_t& e : scales)
      e = static_cast<uint8_t>(std::min<uint32_t>(255, least + random.below(spread)));
    PanelBases bases;
    const int passes = panel_bases(scales.data(), blocks, bases);
    for (int64_t i = 0; i < 16 * blocks; ++i) {
      int taken = 0;
      for (int p = 0; p < passes; ++p)
        taken += static_cast<uint8_t>(scales[i] - bases[p][i % 16]) <= kMostExponentSpread;
      EXPECT_EQ(taken, 1) << int{scales[i]};
    }
    EXPECT_LE(passes, kMostPasses);
    EXPECT_EQ(passes == 1, spread_of(scales) <= kMostExponentSpread);
  }
}

TEST_F(Int8RowKernels, DamageStaysInItsRowAndItsToken) {
  Random random(3);
  TestWeight w(random, Format::kMxfp4, 1, 32, 128);
  for (int b = 0; b < 4; ++b) w.scales[4 * 5 + b] = 255;  // all of row 5
  w.scales[4 * 20] = 255;                                 // one block of row 20
  w.pack(Layout::kPanels16);
  Floats x(random, 7, 128);
  x.values[2 * 128 + 40] = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& y : multiply(w, x))
    for (int t = 0; t < 7; ++t)
      for (int n = 0; n < 32; ++n)
        EXPECT_EQ(std::isnan(y[t * 32 + n]), n == 5 || n == 20 || t == 2) << t << " " << n;
}

}  // namespace
}  // namespace nibble::ops
