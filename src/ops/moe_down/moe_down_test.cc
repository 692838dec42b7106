#include "ops/moe_down/moe_down.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "cuda/caps.h"
#include "ops/gpu_matmul/unit_one.h"
#include "ops/matmul_ref.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, width, experts, top_k;
  Format format;
};
constexpr Shape kShapes[] = {{160, 2880, 6, 4, Format::kMxfp4},  // gpt-oss's expert width
                             {96, 64, 5, 2, Format::kMxfp4},     {33, 96, 3, 3, Format::kMxfp4},
                             {20, 72, 4, 1, Format::kBF16},      {21, 80, 4, 3, Format::kNvfp4},
                             {96, 64, 5, 2, Format::kNvfp4},     {20, 72, 4, 2, Format::kFp8Row},
                             {64, 96, 4, 2, Format::kFp8Row},    {64, 160, 4, 2, Format::kFp8Block},
                             {64, 128, 4, 2, Format::kInt4G128}, {96, 64, 5, 2, Format::kBF16}};

// A weighted sum of K dot products: their errors, and K + 1 roundings more.
// ran: how many kernels there were, of each format of activations.
using Ran = std::map<ActFormat, size_t>;
void check(Ran& ran, const Shape& shape, int64_t tokens, DType act,
           ActFormat format = ActFormat::kFloat) {
  Random random(static_cast<uint32_t>(tokens));
  TestWeight w(random, shape.format, shape.experts, shape.hidden, shape.width);
  Floats u(random, tokens * shape.top_k, shape.width, act), got(tokens, shape.hidden),
      one_u(shape.top_k, shape.width), alone(1, shape.hidden);
  TestRouting routing(tokens, shape.experts, shape.top_k);
  routing.randomize(random);
  const MoeDownDesc desc{shape.hidden, shape.width, shape.experts, shape.top_k, shape.format};
  TestCtx test(act, scratch_bytes(desc, tokens, 2));
  const auto kernels = kernels_here(moe_down_kernels(), desc, format);
  ran[format] += kernels.size();
  for (const MoeDownKernel* row : kernels) {
    if (w.view.layout != row->layout) w.pack(row->layout);
    const ActFormat rounded = rounded_by(row->name, format);
    const Floats seen = as_input(u, rounded);
    const double error = dot_error(shape.width, rounded) + (shape.top_k + 1) * kEps;
    row->run(test.cx, got.tensor(), u.tensor(), routing.view, w.view);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t n = 0; n < shape.hidden; ++n) {
        double want = 0, sum_abs = 0;
        for (int64_t i = t * shape.top_k; i < (t + 1) * shape.top_k; ++i) {
          double abs;
          want += routing.p[i] *
                  ref::Row(w.view, routing.ids[i], n).dot(seen.row(routing.slot[i]), &abs);
          sum_abs += routing.p[i] * abs;
        }
        ASSERT_NEAR(got.at(t, n), want, error * sum_abs)
            << row->name << " token " << t << " column " << n;
      }
      TestRouting one(1, shape.experts, shape.top_k);
      std::copy_n(routing.ids.begin() + t * shape.top_k, shape.top_k, one.ids.begin());
      std::copy_n(routing.p.begin() + t * shape.top_k, shape.top_k, one.p.begin());
      sort_by_expert(one.view);
      for (int64_t k = 0; k < shape.top_k; ++k)
        std::copy_n(u.row(routing.slot[t * shape.top_k + k]), shape.width,
                    one_u.values.begin() + one.slot[k] * shape.width);
      row->run(test.cx, alone.tensor(), one_u.tensor(), one.view, w.view);
      ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), got.row(t)))
          << row->name << " token " << t;
    }
  }
}

TEST(MoeDown, EveryKernelEqualsTheTwinAndItselfAlone) {
  Ran ran;
  for (const Shape& shape : kShapes)
    for (int64_t tokens : {1, 2, 5, 31}) {
      if (shape.width == 2880 && tokens > 5) continue;
      for (DType act : {DType::kF32, DType::kBF16}) check(ran, shape, tokens, act);
      for (const ActFormat format : {ActFormat::kInt8, ActFormat::kInt8Row})
        check(ran, shape, tokens, DType::kF32, format);
    }
  for (const auto& [format, kernels] : ran)
    EXPECT_EQ(kernels > 0, runs_here(format)) << act_format_name(format);
}

// What is there comes first: one rounding more than without.
TEST(MoeDown, AddsToWhatASharedExpertLeft) {
  for (const Shape& shape : {kShapes[1], kShapes[3], kShapes[4]}) {
    const int64_t tokens = 5;
    Random random(8);
    TestWeight w(random, shape.format, shape.experts, shape.hidden, shape.width);
    Floats u(random, tokens * shape.top_k, shape.width);
    const Floats before(random, tokens, shape.hidden);
    TestRouting routing(tokens, shape.experts, shape.top_k);
    routing.randomize(random);
    const MoeDownDesc desc{.hidden = shape.hidden,
                           .width = shape.width,
                           .experts = shape.experts,
                           .top_k = shape.top_k,
                           .format = shape.format,
                           .adds = true};
    TestCtx test(DType::kF32, scratch_bytes(desc, tokens, 2));
    for (const bool adds : {false, true}) {
      Floats want = before;
      routing.view.adds = adds;
      ref::moe_down(test.cx, want.tensor(), u.tensor(), routing.view, w.view);
      for (const MoeDownKernel* row : kernels_here(moe_down_kernels(), desc)) {
        if (w.view.layout != row->layout) w.pack(row->layout);
        Floats got = before;
        row->run(test.cx, got.tensor(), u.tensor(), routing.view, w.view);
        for (size_t i = 0; i < got.values.size(); ++i)
          ASSERT_NEAR(got.values[i], want.values[i], 1e-4) << row->name << " " << adds;
      }
      w.pack(Layout::kRows);
      for (size_t i = 0; i < want.values.size(); ++i) ASSERT_NE(want.values[i], before.values[i]);
    }
  }
}

// Qwen3-Next-80B's experts: 10 of 512, beside a shared one.
TEST(MoeDown, TenChoicesThatAddHaveFastRows) {
  MoeDownDesc desc{.hidden = 2048,
                   .width = 512,
                   .experts = 512,
                   .top_k = 10,
                   .format = Format::kNvfp4,
                   .adds = true};
  const auto row_of = [&](const cuda::Caps& gpu, int64_t tokens) {
    desc.tokens = tokens;
    KernelOptions options;
    options.gpu = gpu;
    return std::string_view(pick(Op::kMoeDown, moe_down_kernels(), desc, options).row->name);
  };
  for (const cuda::Caps& gpu : {cuda::h200(), cuda::gb10()})
    EXPECT_EQ(row_of(gpu, 1), "cuda_nvfp4_one");
  for (const int64_t tokens : {2, 4, 8}) {
    EXPECT_EQ(row_of(cuda::h200(), tokens), "cuda_nvfp4_one");
    EXPECT_EQ(row_of(cuda::gb10(), tokens), "cuda_nvfp4_decode");
  }
  for (const int64_t tokens : {16, 64, 256}) {
    EXPECT_EQ(row_of(cuda::h200(), tokens), "sm90_nvfp4_narrow");
    EXPECT_EQ(row_of(cuda::gb10(), tokens), "cuda_nvfp4_decode");
  }
  EXPECT_EQ(row_of(cuda::h200(), 2048), "sm90_nvfp4_gemm");
  EXPECT_EQ(row_of(cuda::gb10(), 2048), "cuda_nvfp4_gemm");
  desc.top_k = 17;
  EXPECT_EQ(row_of(cuda::h200(), 1), "cuda_any");
}

// A kernel is chosen for the most tokens of a bucket of steps, and runs for fewer, whose blocks
// share K otherwise: where that does not fit it is not chosen.
TEST(MoeDown, TokenByTokenFitsAllOfABucket) {
  KernelOptions options;
  options.gpu = cuda::h200();
  int chosen = 0, refused = 0;
  for (int64_t width = 64; width <= 4096; width += 64)
    for (const int64_t hidden : {2048, 3072, 4096, 7168})
      for (const int64_t top_k : {6, 10, 11})
        for (const int64_t tokens : {2, 4, 8}) {
          const MoeDownDesc desc{.hidden = hidden,
                                 .width = width,
                                 .experts = 512,
                                 .top_k = top_k,
                                 .format = Format::kNvfp4,
                                 .tokens = tokens};
          const auto picked = pick(Op::kMoeDown, moe_down_kernels(), desc, options);
          const bool is_one = std::string_view(picked.row->name) == "cuda_nvfp4_one";
          is_one ? ++chosen : ++refused;
          for (int64_t fewer = tokens / 2 + 1; is_one && fewer <= tokens; ++fewer)
            EXPECT_TRUE(gpu::plan_unit_one({.work = gpu::OneWork::kSum,
                                            .rows = hidden,
                                            .cols = width,
                                            .top_k = static_cast<int>(top_k),
                                            .tokens = static_cast<int>(fewer)},
                                           options.gpu))
                << hidden << " x " << width << ", " << top_k << " of " << fewer << " tokens";
        }
  EXPECT_GT(chosen, 100);
  EXPECT_GT(refused, 100);
}

// Token by token where few experts are common to two, and blocks have even shares.
TEST(MoeDown, FewTokensGoTokenByTokenWhereThatIsEven) {
  MoeDownDesc desc{
      .hidden = 2048, .width = 768, .experts = 128, .top_k = 8, .format = Format::kNvfp4};
  KernelOptions options;
  options.gpu = cuda::h200();
  const auto row_of = [&](int64_t hidden, int64_t tokens) {
    desc.hidden = hidden, desc.tokens = tokens;
    return std::string_view(pick(Op::kMoeDown, moe_down_kernels(), desc, options).row->name);
  };
  EXPECT_EQ(row_of(2048, 4), "cuda_nvfp4_one");
  EXPECT_EQ(row_of(2048, 8), "sm90_nvfp4_narrow");  // 28% of their choices in common
  EXPECT_EQ(row_of(2688, 2), "sm90_nvfp4_narrow");  // 168 row tiles for 66 blocks
  EXPECT_EQ(row_of(2688, 1), "cuda_nvfp4_one");
}

// MXFP4's sums are those of a batch, so under --exact too.
TEST(MoeDown, FewTokensOfMxfp4GoTokenByToken) {
  const auto row_of = [](const cuda::Caps& gpu, int64_t experts, int64_t tokens) {
    KernelOptions options;
    options.gpu = gpu, options.exact = experts == 128;
    const MoeDownDesc desc{.hidden = 2880,
                           .width = 2880,
                           .experts = experts,
                           .top_k = 4,
                           .format = Format::kMxfp4,
                           .tokens = tokens};
    return std::string_view(pick(Op::kMoeDown, moe_down_kernels(), desc, options).row->name);
  };
  cuda::Caps h200 = cuda::h200();
  for (const int64_t tokens : {2, 4, 8}) {
    EXPECT_EQ(row_of(h200, 128, tokens), "cuda_w4a16_each");
    EXPECT_EQ(row_of(cuda::gb10(), 128, tokens), "cuda_w4a16_decode");
  }
  for (const int64_t tokens : {1, 16}) EXPECT_EQ(row_of(h200, 128, tokens), "cuda_w4a16_decode");
  EXPECT_EQ(row_of(h200, 32, 2), "cuda_w4a16_each");
  EXPECT_EQ(row_of(h200, 32, 4), "cuda_w4a16_decode");  // 19% of their choices in common
  h200.runs_clusters = false;
  EXPECT_EQ(row_of(h200, 128, 2), "cuda_w4a16_decode");
}

TEST(MoeDown, TwinWeighsTheBiasToo) {
  Random random(1);
  const TestWeight w(random, Format::kMxfp4, 2, 1, 32);
  Floats u(2, 32), d(1, 1);  // no activations: only biases are left
  TestRouting routing(1, 2, 2);
  routing.ids = {1, 0};
  routing.p = {.75f, .25f};
  sort_by_expert(routing.view);
  TestCtx test(DType::kF32, 0, 1);
  ref::moe_down(test.cx, d.tensor(), u.tensor(), routing.view, w.view);
  EXPECT_EQ(d.at(0, 0),
            static_cast<float>(.75 * bf16_to_float(w.bias[1]) + .25 * bf16_to_float(w.bias[0])));
}

TEST(MoeDown, Bytes) {
  const MoeDownDesc down{2880, 2880, 32, 4, Format::kMxfp4};
  EXPECT_EQ(bytes(down, 0, 1), 2880 * 90 * 17 + 2 * 2880);
  EXPECT_EQ(flops(down, 1), 2LL * 4 * 2880 * 2880);
}

}  // namespace
}  // namespace nibble::ops
