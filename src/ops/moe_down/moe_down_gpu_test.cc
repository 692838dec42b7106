#include <gtest/gtest.h>

#include <algorithm>

#include "ops/gpu_matmul/gemv_gpu_test.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/norm_route/norm_route.h"
#include "ops/wrong_blocks.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width, experts, top_k;
};
// gpt-oss's own with few experts, the tiny model's, odd ones, eight experts whose activations are
// more than a block keeps at a time, more chunks a row than gemv_chosen has workers, and more slots
// than the few blocks of gemm_narrow make columns of at a time.
constexpr Shape kShapes[] = {{2880, 2880, 6, 4}, {256, 256, 8, 4},   {16, 64, 3, 1},
                             {48, 320, 130, 2},  {2880, 2880, 9, 8}, {48, 4608, 3, 3},
                             {64, 320, 3, 2}};

// A weighted sum of K products: their errors, and K + 1 roundings more; gemm_narrow leaves those of
// NVFP4 in bf16.
void check(const Shape& shape, int64_t tokens, std::string_view suffix,
           Format format = Format::kMxfp4) {
  Random random(static_cast<uint32_t>(tokens));
  MoeDownDesc desc{shape.hidden, shape.width, shape.experts, shape.top_k, format, tokens};
  TestWeight w(random, format, shape.experts, shape.hidden, shape.width);
  const Floats u(random, tokens * shape.top_k, shape.width, DType::kBF16);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  GpuProblem gpu(gpu::scratch_bytes(desc));
  gpu.cx.kernels.any_size = suffix == "_each";  // these have many experts in common
  // Eight rows an expert, which are refused neither as too few nor as too many.
  if (suffix == "_narrow") desc.tokens = std::max<int64_t>(2, 8 * shape.experts / shape.top_k);
  bool has_run = false;
  for (const auto* row : gemv_rows_and(suffix, moe_down_kernels(), desc, gpu.cx.kernels, w)) {
    const bool is_narrow = std::string_view(row->name).ends_with("_narrow");
    if (format != Format::kMxfp4 && !is_narrow) continue;  // those: general_rows_gpu_test.cc
    has_run = true;
    const Weight weight = gpu.weight(w);
    const auto run = [&](const Floats& from, const TestRouting& r) {
      const Tensor d = gpu.output(DType::kF32, {r.view.num_tokens, shape.hidden});
      row->run(gpu.cx, d, gpu.tensor(from, DType::kBF16), gpu.routing(r), weight);
      return gpu.floats(d);
    };
    const Floats got = run(u, routing);
    ASSERT_EQ(got.values, run(u, routing).values) << row->name;
    WrongBlocks blocks(shape.width);
    for (int64_t t = 0; t < tokens; t += alone_step(tokens)) {
      TestRouting one(1, shape.experts, shape.top_k);
      std::copy_n(routing.ids.begin() + t * shape.top_k, shape.top_k, one.ids.begin());
      std::copy_n(routing.p.begin() + t * shape.top_k, shape.top_k, one.p.begin());
      sort_by_expert(one.view);
      Floats one_u(shape.top_k, shape.width);
      for (int64_t k = 0; k < shape.top_k; ++k)
        std::copy_n(u.row(routing.slot[t * shape.top_k + k]), shape.width,
                    one_u.values.begin() + one.slot[k] * shape.width);
      const Floats alone = run(one_u, one);
      ASSERT_TRUE(!is_invariant(*row) ||
                  std::equal(alone.values.begin(), alone.values.end(), got.row(t)))
          << row->name << " token " << t << " of " << tokens;
      std::vector<std::vector<float>> maxima;
      for (int64_t k = 0; k < shape.top_k; ++k)
        maxima.push_back(block_maxima(one_u.row(one.slot[k]), shape.width));
      for (int64_t n = 0; n < shape.hidden; n += row_step(shape.hidden)) {
        double want = 0, error = 0;
        for (int64_t k = 0; k < shape.top_k; ++k) {
          const ref::Row weights(w.view, one.ids[k], n);
          const float* x = one_u.row(one.slot[k]);
          double y, abs;
          weights.dot(x, &abs);
          double y_error = is_narrow ? narrow_error(weights, x, shape.width, &y)
                                     : gemv_error(weights, x, maxima[k], format, &y);
          if (is_narrow && format == Format::kNvfp4)
            y_error += store_error(DType::kBF16, std::fabs(y) + y_error);
          want += one.p[k] * y;
          error += one.p[k] * (y_error + (shape.top_k + 1) * kEps * abs);
        }
        ASSERT_NEAR(got.at(t, n), want, error) << row->name << " token " << t << " column " << n;
        blocks.add(t, n, got.at(t, n), want);
      }
    }
    EXPECT_LT(blocks.worst(), 1) << row->name;
  }
  EXPECT_TRUE(has_run);
  EXPECT_TRUE(gpu.counters_are_zero());
}

TEST(MoeDownGpu, EqualsTheTwinAndItselfAlone) {
  for (const Shape& shape : kShapes)
    for (int64_t tokens : {1, 2, 7, 40}) {
      if (shape.width == 2880 && tokens > 2) continue;
      if (is_too_slow(shape.hidden * tokens)) continue;
      check(shape, tokens, "_batch");
      check(shape, tokens, "_each");
      check(shape, tokens, "_slots");
      check(shape, tokens, "_narrow");
    }
}

TEST(MoeDownGpu, NarrowEqualsTheTwinOfNvfp4) {
  if (cuda::open_device().sm != 90) GTEST_SKIP() << "the row is Hopper's";
  for (const Shape& shape : {Shape{128, 960, 6, 4},
                             {64, 4096, 3, 2},
                             {256, 256, 8, 4},
                             {64, 192, 5, 5},
                             {64, 320, 3, 2},
                             {128, 512, 9, 4},
                             {64, 64, 3, 1},
                             {64, 64, 256, 8},
                             {64, 64, 513, 11}})
    for (int64_t tokens : {1, 2, 7, 40, 60})
      if (!is_too_slow(shape.hidden * tokens)) check(shape, tokens, "_narrow", Format::kNvfp4);
}

TEST(MoeDownGpu, NarrowDoesNothingWithoutTokens) {
  if (cuda::open_device().sm != 90) GTEST_SKIP() << "the rows are Hopper's";
  const Shape shape{64, 64, 3, 1};
  for (const Format format : {Format::kMxfp4, Format::kNvfp4}) {
    Random random(1);
    const MoeDownDesc desc{shape.hidden, shape.width, shape.experts,
                           shape.top_k,  format,      8 * shape.experts};
    TestWeight w(random, format, shape.experts, shape.hidden, shape.width);
    const Floats u(random, 1, shape.width, DType::kBF16);
    TestRouting routing(1, shape.experts, shape.top_k);  // as a step before has left it
    routing.randomize(random);
    GpuProblem gpu(gpu::scratch_bytes(desc));
    const auto* row = gemv_rows_and("_narrow", moe_down_kernels(), desc, gpu.cx.kernels, w).back();
    ASSERT_TRUE(std::string_view(row->name).ends_with("_narrow"));
    Routing none = gpu.routing(routing);
    none.num_tokens = 0;
    const Tensor d = gpu.output(DType::kF32, {1, shape.hidden});
    row->run(gpu.cx, d, gpu.tensor(u, DType::kBF16), none, gpu.weight(w));
    for (const float v : gpu.floats(d).values) EXPECT_TRUE(std::isnan(v)) << row->name;
    EXPECT_TRUE(gpu.counters_are_zero());
  }
}

// norm_route may leave the choice of one token's experts to moe_up, which publishes it, and
// moe_down, which must not wait for that.
TEST(MoeDownGpu, ChoosesTheExpertsThatMoeUpChooses) {
  const Shape shape{256, 256, 128, 4};
  Random random(3);
  const MoeUpDesc up_desc{shape.hidden, shape.width, shape.experts, shape.top_k, Format::kMxfp4, 1};
  const MoeDownDesc down_desc{shape.hidden, shape.width,    shape.experts,
                              shape.top_k,  Format::kMxfp4, 1};
  TestWeight up(random, Format::kMxfp4, shape.experts, 2 * shape.width, shape.hidden);
  TestWeight down(random, Format::kMxfp4, shape.experts, shape.hidden, shape.width);
  const Floats h(random, 1, shape.hidden, DType::kBF16);
  const std::vector<float> logits = random.normals(shape.experts);
  TestRouting twin(1, shape.experts, shape.top_k);
  choose_experts(logits.data(), shape.experts, shape.top_k, twin.ids.data(), twin.p.data());
  GpuProblem gpu(scratch_bytes(down_desc, 1, 1));
  const auto* up_row = gemv_rows(moe_up_kernels(), up_desc, gpu.cx.kernels, up)[0];
  const auto* down_row = gemv_rows(moe_down_kernels(), down_desc, gpu.cx.kernels, down)[0];
  const Tensor in = gpu.tensor(h, DType::kBF16);
  const Weight up_weight = gpu.weight(up), down_weight = gpu.weight(down);
  const auto run = [&](Routing& routing) {
    const Tensor u = gpu.output(DType::kBF16, {shape.top_k, shape.width});
    const Tensor d = gpu.output(DType::kF32, {1, shape.hidden});
    up_row->run(gpu.cx, u, in, routing, up_weight, kClampedSwiglu);
    down_row->run(gpu.cx, d, u, routing, down_weight);
    return gpu.floats(d);
  };
  Routing left = gpu.routing_output(twin);
  left.logits = gpu.array(logits);
  const Floats got = run(left);
  TestRouting published(1, shape.experts, shape.top_k);
  gpu.read_back(published, left);
  EXPECT_EQ(published.ids, twin.ids);
  Routing chosen = gpu.routing(published);
  EXPECT_EQ(got.values, run(chosen).values);
}

}  // namespace
}  // namespace nibble::ops
