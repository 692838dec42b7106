// The GEMM rows of moe_up, moe_down and out_proj against the twin: those of this GPU, and those
// that a GB10 would take, which run on any.
#include <gtest/gtest.h>

#include <string_view>

#include "ops/gpu_test_problem.h"
#include "ops/matmul_ref.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/out_proj/out_proj.h"
#include "ops/refuse.h"
#include "ops/wrong_blocks.h"

namespace nibble::ops {
namespace {

// Of a sum of n products over its terms' magnitudes: weights and activations are exact, sums are
// float32 in one chain, which tensor cores truncate (twice the error of rounding).
double gemm_error(int64_t n) { return 2 * (n + 8) * kEps; }

// Whose rows are under test.
enum class Rows { kOfThisGpu, kOfGb10 };
constexpr Rows kBoth[] = {Rows::kOfThisGpu, Rows::kOfGb10};
KernelOptions options_of(Rows rows, const GpuProblem& gpu) {
  KernelOptions options = gpu.cx.kernels;
  if (rows == Rows::kOfGb10) options.gpu = cuda::gb10();
  return options;
}

// The row under test, by the end of its name; its weight in the layout it reads. None: all refuse.
template <typename Desc, typename Fn>
const Kernel<Desc, Fn>* gemm_row(std::span<const Kernel<Desc, Fn>> table, const Desc& desc,
                                 const KernelOptions& options, TestWeight& w,
                                 std::string_view suffix = "_gemm") {
  for (const auto& row : table) {
    if (!std::string_view(row.name).ends_with(suffix)) continue;
    if (row.refuse(desc, options) != nullptr) continue;
    if (row.layout != w.view.layout) w.pack(row.layout);
    return &row;
  }
  return nullptr;
}

// Index of the first value whose bits differ, or -1: NaNs of unwritten places are found too.
int64_t first_difference(const Floats& a, const Floats& b) {
  for (size_t i = 0; i < a.values.size(); ++i)
    if (std::memcmp(&a.values[i], &b.values[i], sizeof(float)) != 0 || std::isnan(a.values[i]))
      return static_cast<int64_t>(i);
  return -1;
}

// Some of many: enough to meet every row of a tile.
int64_t stride(int64_t n) { return n <= 256 ? 1 : 17; }

struct Shape {
  int64_t hidden, width, experts, top_k;
};
// gpt-oss's own with few experts, the tiny model's, row tiles that end early, one unit of 64; and
// of more experts than a block has threads, which MXFP4's rows do not take, most without slots.
constexpr Shape kShapes[] = {{2880, 2880, 6, 4}, {256, 256, 8, 4}, {64, 72, 3, 1},
                             {320, 704, 130, 2}, {192, 64, 5, 5},  {64, 64, 513, 11}};
constexpr int64_t kTokens[] = {1, 7, 40, 300};
bool is_taken(const Shape& shape, Format format) {
  return shape.experts <= 256 || format == Format::kNvfp4;
}

// A token's choices as a step of their own.
void only(TestRouting& one, const TestRouting& of, int64_t t) {
  const int64_t k = of.view.top_k;
  std::copy_n(of.ids.begin() + t * k, k, one.ids.begin());
  std::copy_n(of.p.begin() + t * k, k, one.p.begin());
  sort_by_expert(one.view);
}

// swiglu's slope is at most 1.1 |v + 1| along the gate and 1.1 |g| (+ the fast exponential's 2^-20)
// along the other; u is rounded to bf16.
void check_up(const Shape& shape, Format format, int64_t tokens, Rows rows) {
  Random random(static_cast<uint32_t>(tokens));
  const MoeUpDesc desc{shape.hidden, shape.width, shape.experts, shape.top_k, format, 1 << 20};
  TestWeight w(random, format, shape.experts, 2 * shape.width, shape.hidden);
  const Floats h(random, tokens, shape.hidden, DType::kBF16);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  GpuProblem gpu;
  const MoeUpKernel* row = gemm_row(moe_up_kernels(), desc, options_of(rows, gpu), w);
  ASSERT_NE(row, nullptr);
  const Weight weight = gpu.weight(w);
  const Tensor in = gpu.tensor(h, DType::kBF16);
  const auto run = [&](const Tensor& from, const TestRouting& r) {
    const Tensor u = gpu.output(DType::kBF16, {r.view.num_tokens * shape.top_k, shape.width});
    row->run(gpu.cx, u, from, gpu.routing(r), weight, kClampedSwiglu);
    return gpu.floats(u);
  };
  const Floats got = run(in, routing);
  ASSERT_EQ(first_difference(got, run(in, routing)), -1) << shape.hidden << " x " << tokens;
  const double e = gemm_error(shape.hidden);
  WrongBlocks blocks(shape.hidden);
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, stride(tokens))) {
    TestRouting one(1, shape.experts, shape.top_k);
    only(one, routing, t);
    const Floats alone = run(
        make_tensor(in.as<uint16_t>() + t * shape.hidden, DType::kBF16, {1, shape.hidden}), one);
    for (int64_t k = 0; k < shape.top_k; ++k) {
      const int64_t slot = routing.slot[t * shape.top_k + k];
      ASSERT_TRUE(std::equal(got.row(slot), got.row(slot) + shape.width, alone.row(one.slot[k])))
          << "token " << t << " of " << tokens << " choice " << k;
      for (int64_t j = t % 5; j < shape.width; j += stride(shape.width * tokens)) {
        double gate_abs, up_abs;
        const double gate = ref::Row(w.view, one.ids[k], 2 * j).dot(h.row(t), &gate_abs);
        const double up = ref::Row(w.view, one.ids[k], 2 * j + 1).dot(h.row(t), &up_abs);
        const double want = ref::swiglu(gate, up, kClampedSwiglu);
        const double g = std::min(std::fabs(gate) + e * gate_abs, 7.0),
                     v = std::min(std::fabs(up) + e * up_abs, 7.0) + 1;
        ASSERT_NEAR(got.at(slot, j), want,
                    1.1 * e * (v * gate_abs + g * up_abs) + 0x1p-20 * g * v +
                        store_error(DType::kBF16, want) + 1e-6)
            << "slot " << slot << " column " << j;
        blocks.add(slot, 2 * j, got.at(slot, j), want);
      }
    }
  }
  EXPECT_LT(blocks.worst(), 1);
}

TEST(GemmGpu, MoeUpEqualsTheTwinAndItselfAlone) {
  for (const Shape& shape : kShapes)
    for (const Format format : {Format::kMxfp4, Format::kNvfp4})
      for (const int64_t tokens : kTokens)
        for (const Rows rows : kBoth)
          if (is_taken(shape, format) && !is_too_slow(shape.hidden * tokens))
            check_up(shape, format, tokens, rows);
}

// A weighted sum of K products: their errors, a bf16 rounding of each, K + 1 of float32.
void check_down(const Shape& shape, Format format, int64_t tokens, Rows rows) {
  Random random(static_cast<uint32_t>(tokens));
  const MoeDownDesc desc{shape.width, shape.hidden, shape.experts, shape.top_k, format, 1 << 20};
  TestWeight w(random, format, shape.experts, desc.hidden, desc.width);
  const Floats u(random, tokens * shape.top_k, desc.width, DType::kBF16);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  MoeDownDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const MoeDownKernel* row = gemm_row(moe_down_kernels(), desc, options_of(rows, gpu), w);
  ASSERT_NE(row, nullptr);
  const Weight weight = gpu.weight(w);
  const auto run = [&](const Floats& from, const TestRouting& r) {
    const Tensor d = gpu.output(DType::kF32, {r.view.num_tokens, desc.hidden});
    row->run(gpu.cx, d, gpu.tensor(from, DType::kBF16), gpu.routing(r), weight);
    return gpu.floats(d);
  };
  const Floats got = run(u, routing);
  const Floats again = run(u, routing);
  const int64_t bad = first_difference(got, again);
  ASSERT_EQ(bad, -1) << desc.hidden << " x " << desc.width << " x " << tokens << ": "
                     << got.values[bad] << " then " << again.values[bad];
  WrongBlocks blocks(desc.width);
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, stride(tokens))) {
    TestRouting one(1, shape.experts, shape.top_k);
    only(one, routing, t);
    Floats one_u(shape.top_k, desc.width);
    for (int64_t k = 0; k < shape.top_k; ++k)
      std::copy_n(u.row(routing.slot[t * shape.top_k + k]), desc.width,
                  one_u.values.begin() + one.slot[k] * desc.width);
    const Floats alone = run(one_u, one);
    ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), got.row(t)))
        << "token " << t << " of " << tokens;
    for (int64_t n = t % 5; n < desc.hidden; n += stride(desc.hidden * tokens)) {
      double want = 0, error = 0;
      for (int64_t k = 0; k < shape.top_k; ++k) {
        double abs;
        const double y = ref::Row(w.view, one.ids[k], n).dot(one_u.row(one.slot[k]), &abs);
        want += one.p[k] * y;
        error +=
            one.p[k] * ((gemm_error(desc.width) + (shape.top_k + 1) * kEps) * abs +
                        store_error(DType::kBF16, std::fabs(y) + gemm_error(desc.width) * abs));
      }
      ASSERT_NEAR(got.at(t, n), want, error) << "token " << t << " column " << n;
      blocks.add(t, n, got.at(t, n), want);
    }
  }
  EXPECT_LT(blocks.worst(), 1);
}

TEST(GemmGpu, MoeDownEqualsTheTwinAndItselfAlone) {
  for (const Shape& shape : kShapes)
    for (const Format format : {Format::kMxfp4, Format::kNvfp4})
      for (const int64_t tokens : kTokens)
        for (const Rows of : kBoth)
          if (is_taken(shape, format) && shape.width % 64 == 0 &&
              !is_too_slow(shape.width * tokens))
            check_down(shape, format, tokens, of);
}

void check_dense(int64_t rows, int64_t cols, Format format, int64_t tokens, std::string_view suffix,
                 Rows of = Rows::kOfThisGpu) {
  Random random(static_cast<uint32_t>(cols + tokens));
  const OutProjDesc desc{rows, cols, format, suffix == "_split" ? kSplitTokens : 1 << 20};
  TestWeight w(random, format, 1, rows, cols);
  const Floats att(random, tokens, cols, DType::kBF16);
  OutProjDesc here = desc;
  here.tokens = tokens;
  GpuProblem gpu(gpu::scratch_bytes(here));
  const OutProjKernel* row = gemm_row(out_proj_kernels(), desc, options_of(of, gpu), w, suffix);
  ASSERT_NE(row, nullptr);
  const Weight weight = gpu.weight(w);
  const auto run = [&](const Floats& from) {
    const Tensor d = gpu.output(DType::kF32, {from.shape[0], rows});
    row->run(gpu.cx, d, gpu.tensor(from, DType::kBF16), weight,
             Step{.num_tokens = static_cast<int32_t>(from.shape[0])});
    return gpu.floats(d);
  };
  // A token without the others. Into how many parts "_split", and wgmma of bf16 rows, cut K goes by
  // the number of tokens: there they are zeros.
  const auto alone = [&](int64_t t) {
    const bool has_place =
        suffix == "_split" || (format == Format::kBF16 && of == Rows::kOfThisGpu);
    Floats one(has_place ? tokens : 1, cols);
    const int64_t place = has_place ? t : 0;
    std::copy_n(att.row(t), cols, one.values.begin() + place * cols);
    const Floats d = run(one);
    return std::vector<float>(d.row(place), d.row(place) + rows);
  };
  const Floats got = run(att);
  ASSERT_EQ(first_difference(got, run(att)), -1) << rows << " x " << cols << " x " << tokens;
  WrongBlocks blocks(cols);
  for (int64_t t = 0; t < tokens; t += alone_step(tokens, tokens <= 64 ? 1 : 17)) {
    const std::vector<float> one = alone(t);
    ASSERT_TRUE(std::equal(one.begin(), one.end(), got.row(t)))
        << "token " << t << " of " << tokens;
    for (int64_t n = t % 5; n < rows; n += stride(rows * tokens)) {
      double abs;
      const double want = ref::Row(w.view, 0, n).dot(att.row(t), &abs);
      ASSERT_NEAR(got.at(t, n), want, gemm_error(cols) * abs) << "token " << t << " row " << n;
      blocks.add(t, n, got.at(t, n), want);
    }
  }
  EXPECT_LT(blocks.worst(), 1);
}

TEST(GemmGpu, DenseEqualsTheTwinAndItselfAlone) {
  constexpr int64_t kMatrices[][2] = {{2880, 4096}, {256, 512}, {16, 64}, {336, 320}};
  const bool has_split = cuda::open_device().sm == 90;  // the row is Hopper's
  for (const auto& [rows, cols] : kMatrices) {
    for (const Format format : {Format::kMxfp4, Format::kBF16})
      for (const int64_t tokens : {1, 19, 130, 700})
        for (const Rows of : kBoth)
          if (!is_too_slow(cols * tokens)) check_dense(rows, cols, format, tokens, "_gemm", of);
    for (const int64_t tokens : {1, 16, 19, 64, 100, 129, 256})
      if (has_split && !is_too_slow(cols * tokens))
        check_dense(rows, cols, Format::kMxfp4, tokens, "_split");
  }
}

// Prompts of BF16 rows by gemm_dense: last items that are not whole, and parts of 2,048 tokens.
TEST(GemmGpu, ManyTokensOfBf16RowsEqualTheTwinAndThemselvesAlone) {
  for (const auto& [rows, tokens] : {std::pair{336, 8200}, {2064, 1300}})
    if (!is_too_slow(rows * tokens)) check_dense(rows, 192, Format::kBF16, tokens, "_gemm");
}

// Scales as large and as small as the kernel takes exactly, beside usual ones.
TEST(GemmGpu, ScalesOfAnySizeFit) {
  Random random(7);
  const OutProjDesc desc{32, 128, Format::kMxfp4, 1 << 20};
  TestWeight w(random, Format::kMxfp4, 1, desc.hidden, desc.width);
  for (int64_t block = 0; block < 4; ++block) {
    w.scales[3 * 4 + block] = static_cast<uint8_t>(157 + block);  // row 3: 2^30 to 2^33
    w.scales[20 * 4 + block] = static_cast<uint8_t>(67 + block);  // row 20: 2^-60 to 2^-57
  }
  const Floats att(random, 19, desc.width, DType::kBF16);
  GpuProblem gpu;
  const OutProjKernel* row = gemm_row(out_proj_kernels(), desc, gpu.cx.kernels, w);
  ASSERT_NE(row, nullptr);
  const Tensor d = gpu.output(DType::kF32, {19, desc.hidden});
  row->run(gpu.cx, d, gpu.tensor(att, DType::kBF16), gpu.weight(w), Step{.num_tokens = 19});
  const Floats got = gpu.floats(d);
  for (int64_t t = 0; t < 19; ++t)
    for (int64_t n = 0; n < desc.hidden; ++n) {
      double abs;
      const double want = ref::Row(w.view, 0, n).dot(att.row(t), &abs);
      EXPECT_NEAR(got.at(t, n), want, gemm_error(desc.width) * abs) << t << " " << n;
    }
}

// A scale of 255 is NaN: its row is NaN too, whatever clamping would make of it.
TEST(GemmGpu, DamagedRowsShow) {
  for (const int64_t bad_row : {6, 7}) {  // gate and up of column 3
    Random random(5);
    TestWeight w(random, Format::kMxfp4, 1, 32, 64);
    w.scales[bad_row * 2 + 1] = 255;
    const Floats h(random, 6, 64, DType::kBF16);
    TestRouting routing(6, 1, 1);
    sort_by_expert(routing.view);
    GpuProblem gpu;
    const MoeUpDesc desc{64, 16, 1, 1, Format::kMxfp4, 1 << 20};
    const MoeUpKernel* row = gemm_row(moe_up_kernels(), desc, gpu.cx.kernels, w);
    ASSERT_NE(row, nullptr);
    const Tensor u = gpu.output(DType::kBF16, {6, 16});
    row->run(gpu.cx, u, gpu.tensor(h, DType::kBF16), gpu.routing(routing), gpu.weight(w),
             kClampedSwiglu);
    const Floats got = gpu.floats(u);
    for (int64_t t = 0; t < 6; ++t)
      for (int64_t j = 0; j < 16; ++j)
        EXPECT_EQ(std::isnan(got.at(t, j)), j == 3) << "row " << bad_row << " column " << j;
  }
}

}  // namespace
}  // namespace nibble::ops
