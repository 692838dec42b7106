#include <gtest/gtest.h>

#include <algorithm>

#include "ops/gpu_matmul/gemv_gpu_test.h"
#include "ops/moe_up/moe_up.h"
#include "ops/wrong_blocks.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width, experts, top_k;
};
// gpt-oss's own with few experts, the tiny model's, odd ones, and one of more chunks a row than
// gemv_chosen has workers.
constexpr Shape kShapes[] = {{2880, 2880, 6, 4}, {256, 256, 8, 4}, {64, 8, 3, 1},
                             {320, 40, 130, 2},  {192, 64, 5, 5},  {4608, 40, 3, 2}};

// swiglu's slope is at most 1.1 |v + 1| along the gate and 1.1 |g| (+ the fast exponential's 2^-20)
// along the other; u is rounded to bf16.
void check(const Shape& shape, int64_t tokens, std::string_view suffix,
           Format format = Format::kMxfp4) {
  Random random(static_cast<uint32_t>(tokens));
  MoeUpDesc desc{shape.hidden, shape.width, shape.experts, shape.top_k, format, tokens};
  TestWeight w(random, format, shape.experts, 2 * shape.width, shape.hidden);
  const Floats h(random, tokens, shape.hidden, DType::kBF16);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  GpuProblem gpu(gpu::scratch_bytes(desc));
  gpu.cx.kernels.any_size = suffix == "_each";  // these have many experts in common
  // Eight rows an expert, which are refused neither as too few nor as too many.
  if (suffix == "_narrow") desc.tokens = std::max<int64_t>(2, 8 * shape.experts / shape.top_k);
  bool has_run = false;
  for (const auto* row : gemv_rows_and(suffix, moe_up_kernels(), desc, gpu.cx.kernels, w)) {
    const bool is_narrow = std::string_view(row->name).ends_with("_narrow");
    if (format != Format::kMxfp4 && !is_narrow) continue;  // those: general_rows_gpu_test.cc
    has_run = true;
    const Weight weight = gpu.weight(w);
    const Tensor in = gpu.tensor(h, DType::kBF16);
    const auto run = [&](const Tensor& from, const TestRouting& r) {
      const Tensor u = gpu.output(DType::kBF16, {r.view.num_tokens * shape.top_k, shape.width});
      row->run(gpu.cx, u, from, gpu.routing(r), weight, kClampedSwiglu);
      return gpu.floats(u);
    };
    const Floats got = run(in, routing);
    ASSERT_EQ(got.values, run(in, routing).values) << row->name;
    WrongBlocks blocks(shape.hidden);
    for (int64_t t = 0; t < tokens; t += alone_step(tokens)) {
      TestRouting one(1, shape.experts, shape.top_k);
      std::copy_n(routing.ids.begin() + t * shape.top_k, shape.top_k, one.ids.begin());
      sort_by_expert(one.view);
      const Floats alone = run(one_row(in, t), one);
      const std::vector<float> maxima = block_maxima(h.row(t), shape.hidden);
      for (int64_t k = 0; k < shape.top_k; ++k) {
        const int64_t slot = routing.slot[t * shape.top_k + k];
        ASSERT_TRUE(!is_invariant(*row) ||
                    std::equal(got.row(slot), got.row(slot) + shape.width, alone.row(one.slot[k])))
            << row->name << " token " << t << " of " << tokens << " choice " << k;
        const int32_t e = one.ids[k];
        for (int64_t j = 0; j < shape.width; j += row_step(shape.width)) {
          const ref::Row gate_row(w.view, e, 2 * j), up_row(w.view, e, 2 * j + 1);
          const auto error_of = [&](const ref::Row& r, double* value) {
            return is_narrow ? narrow_error(r, h.row(t), shape.hidden, value)
                             : gemv_error(r, h.row(t), maxima, format, value);
          };
          double gate, up;
          const double gate_error = error_of(gate_row, &gate), up_error = error_of(up_row, &up);
          const double want = ref::swiglu(gate, up, kClampedSwiglu);
          const double g = std::min(std::fabs(gate) + gate_error, 7.0),
                       v = std::min(std::fabs(up) + up_error, 7.0) + 1;
          ASSERT_NEAR(got.at(slot, j), want,
                      1.1 * (v * gate_error + g * up_error) + 0x1p-20 * g * v +
                          store_error(DType::kBF16, want) + 1e-6)
              << row->name << " slot " << slot << " column " << j;
          blocks.add(slot, 2 * j, got.at(slot, j), want);
        }
      }
    }
    EXPECT_LT(blocks.worst(), 1) << row->name;
  }
  EXPECT_TRUE(has_run);
  EXPECT_TRUE(gpu.counters_are_zero());
}

TEST(MoeUpGpu, EqualsTheTwinAndItselfAlone) {
  for (const Shape& shape : kShapes)
    for (int64_t tokens : {1, 2, 7, 40}) {
      if (shape.width == 2880 && tokens > 7) continue;
      if (is_too_slow(shape.hidden * tokens)) continue;
      check(shape, tokens, "_batch");
      check(shape, tokens, "_each");
      check(shape, tokens, "_narrow");
    }
}

TEST(MoeUpGpu, NarrowEqualsTheTwinOfNvfp4) {
  if (cuda::open_device().sm != 90) GTEST_SKIP() << "the row is Hopper's";
  for (const Shape& shape : {Shape{960, 96, 6, 4},
                             {4096, 32, 3, 2},
                             {256, 256, 8, 4},
                             {192, 64, 5, 5},
                             {64, 320, 3, 2},
                             {512, 96, 9, 4},
                             {64, 64, 256, 8},
                             {64, 64, 513, 11}})
    for (int64_t tokens : {1, 2, 7, 40, 60})
      if (!is_too_slow(shape.hidden * tokens)) check(shape, tokens, "_narrow", Format::kNvfp4);
}

TEST(MoeUpGpu, NarrowDoesNothingWithoutTokens) {
  if (cuda::open_device().sm != 90) GTEST_SKIP() << "the rows are Hopper's";
  const Shape shape{64, 32, 3, 1};
  for (const Format format : {Format::kMxfp4, Format::kNvfp4}) {
    Random random(1);
    const MoeUpDesc desc{shape.hidden, shape.width, shape.experts,
                         shape.top_k,  format,      8 * shape.experts};
    TestWeight w(random, format, shape.experts, 2 * shape.width, shape.hidden);
    const Floats h(random, 1, shape.hidden, DType::kBF16);
    TestRouting routing(1, shape.experts, shape.top_k);  // as a step before has left it
    routing.randomize(random);
    GpuProblem gpu(gpu::scratch_bytes(desc));
    const auto* row = gemv_rows_and("_narrow", moe_up_kernels(), desc, gpu.cx.kernels, w).back();
    ASSERT_TRUE(std::string_view(row->name).ends_with("_narrow"));
    Routing none = gpu.routing(routing);
    none.num_tokens = 0;
    const Tensor u = gpu.output(DType::kBF16, {shape.top_k, shape.width});
    row->run(gpu.cx, u, gpu.tensor(h, DType::kBF16), none, gpu.weight(w), kClampedSwiglu);
    for (const float v : gpu.floats(u).values) EXPECT_TRUE(std::isnan(v)) << row->name;
    EXPECT_TRUE(gpu.counters_are_zero());
  }
}

TEST(MoeUpGpu, ShowsWeightsAndActivationsThatAreNoNumbers) {
  const Shape shape{64, 32, 2, 1};
  constexpr int64_t kTokens = 12;  // six an expert: more than digits are taken for in a batch
  Random random(1);
  TestWeight w(random, Format::kMxfp4, shape.experts, 2 * shape.width, shape.hidden);
  w.scales[5 * 2] = 255;  // row 5 of expert 0: up 2
  Floats h(random, kTokens, shape.hidden, DType::kBF16);
  TestRouting routing(kTokens, shape.experts, shape.top_k);
  for (int64_t t = 0; t < kTokens; ++t) routing.ids[t] = t < kTokens / 2 ? 0 : 1;
  sort_by_expert(routing.view);
  h.values[(kTokens - 1) * shape.hidden + 3] = INFINITY;
  const MoeUpDesc desc{shape.hidden, shape.width,    shape.experts,
                       shape.top_k,  Format::kMxfp4, 8 * shape.experts};
  GpuProblem gpu(gpu::scratch_bytes(desc));
  for (const std::string_view suffix : {"_batch", "_narrow"})
    for (const auto* row : gemv_rows_and(suffix, moe_up_kernels(), desc, gpu.cx.kernels, w)) {
      const Tensor u = gpu.output(DType::kBF16, {kTokens, shape.width});
      row->run(gpu.cx, u, gpu.tensor(h, DType::kBF16), gpu.routing(routing), gpu.weight(w),
               kClampedSwiglu);
      const Floats got = gpu.floats(u);
      for (int64_t t = 0; t < kTokens; ++t)
        for (int64_t j = 0; j < shape.width; ++j)
          EXPECT_EQ(std::isnan(got.at(t, j)), t == kTokens - 1 || (t < kTokens / 2 && j == 2))
              << row->name << " token " << t << " column " << j;
    }
}

}  // namespace
}  // namespace nibble::ops
