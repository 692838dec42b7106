// unit_one.cuh where activations are none, zero or of all sizes that bf16 has, against the twin.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/general_rows_gpu_test.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/norm_linear/norm_linear.h"
#include "ops/norm_ref.h"
#include "ops/out_proj/out_proj.h"

namespace nibble::ops {
namespace {

const Tested kOne{Format::kNvfp4, "cuda_nvfp4_one", /*exact=*/false};

// What becomes of n normal values, in blocks of 16.
struct Values {
  const char* name;
  void (*make)(Random& random, float* x, int64_t n);
};

void scale(float* x, int64_t n, int exponent) {
  for (int64_t k = 0; k < n; ++k) x[k] = std::ldexp(x[k], exponent);
}
template <int kExponent>
void make_all(Random&, float* x, int64_t n) {
  scale(x, n, kExponent);
}
void make_zero(Random&, float* x, int64_t n) {
  for (int64_t k = 0; k < n; ++k) x[k] = k % 2 == 0 ? 0.f : -0.f;
}
void make_one_block(Random& random, float* x, int64_t n) {
  const int64_t block = random.below(n / 16);
  for (int64_t k = 0; k < n; ++k) x[k] = k / 16 == block ? x[k] : 0;
}
// Each block up to 2^110 and down to 2^-110, and in each element a scale of its own.
template <int kMost>
void make_all_sizes(Random& random, float* x, int64_t n) {
  for (int64_t at = 0; at < n; at += 16) {
    const auto exponent = static_cast<int>(random.below(2 * kMost) - kMost);
    for (int64_t k = at; k < at + 16; ++k)
      x[k] = std::ldexp(x[k], exponent - static_cast<int>(random.below(20)));
  }
}
// One value among the others, as large as bf16 has.
void make_one_largest(Random& random, float* x, int64_t n) {
  x[random.below(n)] = -std::ldexp(255.f / 128, 127);
}
template <int kSign>  // 0: NaN
void make_one_infinite(Random& random, float* x, int64_t n) {
  x[random.below(n)] = kSign == 0 ? std::numeric_limits<float>::quiet_NaN()
                                  : kSign * std::numeric_limits<float>::infinity();
}

// Down to what bf16 has without a leading one, and up to where sums are still float32.
constexpr Values kValues[] = {{"as they are", make_all<0>},
                              {"zero", make_zero},
                              {"zero but for a block", make_one_block},
                              {"some 2^116", make_all<116>},
                              {"one of 2^128", make_one_largest},
                              {"some 2^-104", make_all<-104>},
                              {"some 2^-128", make_all<-128>},
                              {"of all sizes", make_all_sizes<110>},
                              {"one NaN", make_one_infinite<0>},
                              {"one infinite", make_one_infinite<1>},
                              {"one of minus infinity", make_one_infinite<-1>}};
// Behind a norm, whose squares are float32.
constexpr Values kNormed[] = {{"as they are", make_all<0>},
                              {"zero", make_zero},
                              {"zero but for a block", make_one_block},
                              {"some 2^50", make_all<50>},
                              {"some 2^-50", make_all<-50>},
                              {"of all sizes", make_all_sizes<40>},
                              {"one NaN", make_one_infinite<0>},
                              {"one infinite", make_one_infinite<1>},
                              {"one of minus infinity", make_one_infinite<-1>}};

Floats bf16_rows(Random& random, int64_t rows, int64_t cols, const Values& of_first) {
  Floats x(random, rows, cols);
  of_first.make(random, x.values.data(), cols);
  for (float& v : x.values) v = bf16_to_float(bf16_from_float(v));
  return x;
}

bool are_finite(const float* x, int64_t n) {
  return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

// Weights with scales from none to E4M3's largest, and rows of zeros.
void spread_scales(Random& random, TestWeight& w) {
  for (uint8_t& s : w.scales) s = static_cast<uint8_t>(random.below(0x7f));
  const auto row = static_cast<int64_t>(w.scales.size()) / (w.view.experts * w.view.rows);
  for (int64_t r = 3; r < w.view.experts * w.view.rows; r += 7)
    std::fill_n(w.scales.begin() + r * row, row, uint8_t{0});
  for (float& s : w.row_scales) s *= 0x1p-12f;
}

// A sum of n products and how far the row may be from it: an activation is an integer times at most
// 2^-13 of its block's largest, but not less than of 2^-111; sums are float32.
struct Sum {
  double value = 0, error = 0;
  bool is_finite = true;
};
Sum sum_of(const ref::Row& row, const float* x, int64_t n) {
  double abs, off;
  const double value = row.dot(x, &abs);
  std::vector<float> most = block_maxima(x, n, 16);
  for (float& m : most) m = std::max(m, 0x1p-111f);
  row.dot(most.data(), &off);
  return {value, sum_error(n) * abs + 0x1p-14 * off + 0x1p-140, are_finite(x, n)};
}

void expect_sum(const Sum& want, float got) {
  if (want.is_finite)
    ASSERT_NEAR(got, want.value, want.error);
  else
    ASSERT_TRUE(std::isnan(got)) << got;
}

// Of a whole number of parts of K, and not.
TEST(UnitOneGpu, DenseOfAnyValues) {
  for (const int64_t cols : {128, 512, 29 * 64})
    for (const Values& values : kValues) {
      constexpr int64_t kRows = 48;
      SCOPED_TRACE(testing::Message() << cols << " columns, " << values.name);
      Random random(static_cast<uint32_t>(cols));
      const OutProjDesc desc{kRows, cols, Format::kNvfp4, 1};
      TestWeight w(random, Format::kNvfp4, 1, kRows, cols, /*has_bias=*/false);
      spread_scales(random, w);
      const Floats x = bf16_rows(random, 1, cols, values);
      GpuProblem gpu(gpu::scratch_bytes(desc));
      const auto* const row = tested_row(out_proj_kernels(), desc, gpu.cx.kernels, kOne, w);
      ASSERT_NE(row, nullptr);
      const Tensor d = gpu.output(DType::kF32, {1, kRows});
      row->run(gpu.cx, d, gpu.tensor(x, DType::kBF16), gpu.weight(w), Step{.num_tokens = 1});
      const Floats got = gpu.floats(d);
      for (int64_t n = 0; n < kRows; ++n)
        ASSERT_NO_FATAL_FAILURE(expect_sum(sum_of({w.view, 0, n}, x.row(0), cols), got.at(0, n)))
            << "row " << n;
    }
}

TEST(UnitOneGpu, NormedOfAnyValues) {
  for (const int64_t hidden : {128, 29 * 64})
    for (const Values& values : kNormed) {
      constexpr int64_t kRows = 48;
      SCOPED_TRACE(testing::Message() << hidden << " columns, " << values.name);
      Random random(static_cast<uint32_t>(hidden));
      const NormLinearDesc desc{hidden, kRows, Format::kNvfp4, 1};
      TestWeight w(random, Format::kNvfp4, 1, kRows, hidden, /*has_bias=*/false);
      spread_scales(random, w);
      const std::vector<uint16_t> weight = random.bf16s(hidden, 0.3f, 1);
      const Floats x = bf16_rows(random, 1, hidden, values), d(1, hidden);
      GpuProblem gpu(gpu::scratch_bytes(desc));
      const auto* const row = tested_row(norm_linear_kernels(), desc, gpu.cx.kernels, kOne, w);
      ASSERT_NE(row, nullptr);
      const NormLinearOut out{gpu.output(DType::kF32, {1, kRows}),
                              gpu.output(DType::kBF16, {1, hidden}),
                              gpu.output(DType::kF32, {1, hidden})};
      const Norm norm{weight.data(), 1e-5f};
      row->run(gpu.cx, out, gpu.tensor(x, DType::kF32), gpu.tensor(d, DType::kF32),
               {gpu.array(weight), norm.eps}, gpu.weight(w));
      const Floats p = gpu.floats(out.p), h = gpu.floats(out.h), y = gpu.floats(out.y);
      std::vector<float> mine(x.row(0), x.row(0) + hidden);
      if (are_finite(x.row(0), hidden)) {
        ASSERT_EQ(y.values, x.values);
        mine = multiplied_h(row->name, gpu.cx.kernels.gpu, kRows, h.row(0), y.row(0), norm, hidden);
      }
      for (int64_t n = 0; n < kRows; ++n)
        ASSERT_NO_FATAL_FAILURE(expect_sum(sum_of({w.view, 0, n}, mine.data(), hidden), p.at(0, n)))
            << "row " << n;
    }
}

// Of three tokens the first: the others stay what they are.
TEST(UnitOneGpu, ChosenExpertsOfAnyValues) {
  constexpr int64_t kHidden = 320, kWidth = 64, kExperts = 9, kTopK = 3, kTokens = 3;
  for (const Values& values : kValues) {
    SCOPED_TRACE(values.name);
    Random random(1);
    const MoeUpDesc desc{kHidden, kWidth, kExperts, kTopK, Format::kNvfp4, kTokens};
    TestWeight w(random, Format::kNvfp4, kExperts, 2 * kWidth, kHidden, /*has_bias=*/false);
    spread_scales(random, w);
    const Floats h = bf16_rows(random, kTokens, kHidden, values);
    TestRouting routing(kTokens, kExperts, kTopK);
    routing.randomize(random);
    GpuProblem gpu(gpu::scratch_bytes(desc));
    const auto* const row = tested_row(moe_up_kernels(), desc, gpu.cx.kernels, kOne, w);
    ASSERT_NE(row, nullptr);
    const Tensor u = gpu.output(DType::kBF16, {kTokens * kTopK, kWidth});
    row->run(gpu.cx, u, gpu.tensor(h, DType::kBF16), gpu.routing(routing), gpu.weight(w),
             kClampedSwiglu);
    const Floats got = gpu.floats(u);
    for (int64_t i = 0; i < kTokens * kTopK; ++i)
      for (int64_t j = 0; j < kWidth; ++j) {
        const float* const x = h.row(i / kTopK);
        const int32_t e = routing.ids[i];
        const Sum gate = sum_of({w.view, e, 2 * j}, x, kHidden);
        const Sum up = sum_of({w.view, e, 2 * j + 1}, x, kHidden);
        const float u_ij = got.at(routing.slot[i], j);
        if (!gate.is_finite) {
          ASSERT_TRUE(std::isnan(u_ij)) << "choice " << i << " column " << j << ": " << u_ij;
          continue;
        }
        // A gate between its bounds gives what is between theirs, but for a dip of 0.17 below zero.
        double least = std::numeric_limits<double>::infinity(), most = -least;
        for (const double g : {gate.value - gate.error, gate.value + gate.error})
          for (const double v : {up.value - up.error, up.value + up.error}) {
            const double corner = ref::swiglu(g, v, kClampedSwiglu);
            least = std::min(least, corner), most = std::max(most, corner);
          }
        const bool dips = gate.value - gate.error < 0 && gate.value + gate.error > -4;
        const double rest = store_error(DType::kBF16, std::max(std::fabs(least), most)) +
                            (dips ? std::min(1.1 * gate.error, 0.17) * 8 : 0) + 1e-6;
        ASSERT_GE(u_ij, least - rest) << "choice " << i << " column " << j;
        ASSERT_LE(u_ij, most + rest) << "choice " << i << " column " << j;
      }
  }
}

// Of what the first of three tokens has from its first expert, likewise.
TEST(UnitOneGpu, SumsOfExpertsOfAnyValues) {
  constexpr int64_t kHidden = 80, kExperts = 9, kTopK = 3, kTokens = 3;
  for (const int64_t width : {64, 192, 29 * 64})
    for (const Values& values : kValues) {
      SCOPED_TRACE(testing::Message() << width << " columns, " << values.name);
      Random random(1);
      const MoeDownDesc desc{kHidden, width, kExperts, kTopK, Format::kNvfp4, kTokens};
      TestWeight w(random, Format::kNvfp4, kExperts, kHidden, width, /*has_bias=*/false);
      spread_scales(random, w);
      TestRouting routing(kTokens, kExperts, kTopK);
      routing.randomize(random);
      const Floats by_choice = bf16_rows(random, kTokens * kTopK, width, values);
      Floats u(kTokens * kTopK, width);
      for (int64_t i = 0; i < kTokens * kTopK; ++i)
        std::copy_n(by_choice.row(i), width, u.values.begin() + routing.slot[i] * width);
      GpuProblem gpu(gpu::scratch_bytes(desc));
      const auto* const row = tested_row(moe_down_kernels(), desc, gpu.cx.kernels, kOne, w);
      ASSERT_NE(row, nullptr);
      const Tensor d = gpu.output(DType::kF32, {kTokens, kHidden});
      row->run(gpu.cx, d, gpu.tensor(u, DType::kBF16), gpu.routing(routing), gpu.weight(w));
      const Floats got = gpu.floats(d);
      for (int64_t t = 0; t < kTokens; ++t)
        for (int64_t n = 0; n < kHidden; ++n) {
          Sum all;
          for (int64_t k = t * kTopK; k < (t + 1) * kTopK; ++k) {
            const Sum y = sum_of({w.view, routing.ids[k], n}, by_choice.row(k), width);
            all.value += routing.p[k] * y.value;
            all.error += routing.p[k] * (y.error + (kTopK + 1) * kEps * std::fabs(y.value));
            all.is_finite &= y.is_finite;
          }
          ASSERT_NO_FATAL_FAILURE(expect_sum(all, got.at(t, n))) << "token " << t << " row " << n;
        }
    }
}

}  // namespace
}  // namespace nibble::ops
