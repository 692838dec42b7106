#include "ops/norm_route/norm_route.h"

#include <gtest/gtest.h>

#include <numeric>

#include "ops/matmul_ref.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/norm_ref.h"
#include "ops/norm_route/norm_route_test_problem.h"
#include "ops/out_proj/out_proj.h"
#include "ops/shared_up/shared_up.h"
#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, experts, top_k;
};
constexpr Shape kShapes[] = {{2880, 32, 4}, {2880, 128, 4}, {96, 5, 2}, {160, 3, 3}, {72, 4, 1}};

// How experts are chosen.
struct Rule {
  bool over_all = false;
  SigmoidRoute sigmoid = {};
};

// A token's choice is checked where it is_clear(); `checked` counts how often.
void check(const Shape& shape, int64_t tokens, DType act, const Rule& rule, int64_t& checked,
           Format format = Format::kBF16) {
  Random random(static_cast<uint32_t>(shape.experts));
  const TestWeight w(random, format, 1, shape.experts, shape.hidden);
  const std::vector<float> bias = random.normals(shape.experts, 0.1f);
  const std::vector<uint16_t> weight = random.bf16s(shape.hidden, 0.3f, 1);
  const Norm norm{weight.data(), 1e-5f};
  Floats x(random, tokens, shape.hidden, act), d(random, tokens, shape.hidden, act);
  Floats want_y(tokens, shape.hidden), want_h(tokens, shape.hidden);
  ref::add(want_y.values.data(), x.row(0), d.row(0), tokens * shape.hidden);
  for (int64_t t = 0; t < tokens; ++t)
    ref::rms_norm(act, want_h.values.data() + t * shape.hidden, want_y.row(t), norm, shape.hidden);
  const NormRouteDesc desc{.hidden = shape.hidden,
                           .experts = shape.experts,
                           .top_k = shape.top_k,
                           .format = format,
                           .over_all = rule.over_all,
                           .sigmoid = rule.sigmoid};
  TestCtx test(act, scratch_bytes(desc, tokens, 2));
  for (const NormRouteKernel* row : kernels_here(norm_route_kernels(), desc)) {
    Floats y(tokens, shape.hidden), h(tokens, shape.hidden);
    TestRouting got(tokens, shape.experts, shape.top_k);
    got.view.over_all = rule.over_all, got.view.sigmoid = rule.sigmoid;
    got.view.bias = bias.data();
    row->run(test.cx, y.tensor(), h.tensor(), got.view, x.tensor(), d.tensor(), norm, w.view);
    ASSERT_EQ(y.values, want_y.values) << row->name;
    EXPECT_EQ(std::accumulate(got.counts.begin(), got.counts.end(), int64_t{0}),
              tokens * shape.top_k);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < shape.hidden; ++i)
        ASSERT_NEAR(h.at(t, i), want_h.at(t, i),
                    norm_error(act, shape.hidden) * std::fabs(want_h.at(t, i)));
      // The logits of the kernel's own h.
      std::vector<float> logits(shape.experts);
      double error = 0;
      for (int64_t e = 0; e < shape.experts; ++e) {
        double abs;
        logits[e] = static_cast<float>(ref::Row(w.view, 0, e).dot(h.row(t), &abs));
        error = std::max(error, (dot_error(shape.hidden) + kEps) * abs);
      }
      TestRouting one(1, shape.experts, shape.top_k);
      one.view.over_all = rule.over_all, one.view.sigmoid = rule.sigmoid;
      one.view.bias = bias.data();
      if (!is_clear(logits, one, error)) continue;
      ++checked;
      for (int64_t k = 0; k < shape.top_k; ++k) {
        ASSERT_EQ(got.ids[t * shape.top_k + k], one.ids[k]) << row->name << " token " << t;
        ASSERT_NEAR(got.p[t * shape.top_k + k], one.p[k], one.p[k] * (4 * error + 4 * kEps));
      }
    }
  }
}

TEST(NormRoute, EveryKernelEqualsTheTwin) {
  for (const Shape& shape : kShapes) {
    int64_t all = 0, clear = 0, clear_sigmoids = 0;
    for (DType act : {DType::kF32, DType::kBF16})
      for (int64_t tokens : {1, 6, 20})
        for (const bool over_all : {false, true}) {
          check(shape, tokens, act, {over_all}, clear);
          check(shape, tokens, act, {over_all, {.is_used = true, .scale = 2.5f}}, clear_sigmoids);
          all += tokens;
        }
    EXPECT_GT(clear, all / 2);  // and by several rows
    EXPECT_GT(clear_sigmoids, all / 2);
  }
}

TEST(NormRoute, GroupsAndFormatsOfSigmoids) {
  const SigmoidRoute groups{.is_used = true, .groups = 4, .best_groups = 2, .scale = 0.5f};
  int64_t clear = 0;
  for (const int64_t tokens : {1, 6}) {
    check({96, 32, 4}, tokens, DType::kF32, {false, groups}, clear);
    check({72, 4, 2}, tokens, DType::kBF16, {true, groups}, clear);
    check({96, 32, 4}, tokens, DType::kF32, {false, {.is_used = true}}, clear, Format::kF32);
  }
  EXPECT_GT(clear, 14);
}

// Scores 1/2 + 0, 1/2 + 1, near 1 + 0, near 0 + 0.2; in two groups the first makes 2, the
// other 1.2.
TEST(NormRoute, SigmoidsByHand) {
  const float logits[] = {0, 0, 30, -30}, bias[] = {0, 1, 0, 0.2f};
  TestRouting r(1, 4, 2);
  r.view.sigmoid = {.is_used = true, .scale = 3}, r.view.bias = bias;
  choose_experts(logits, r.view, 0);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 2}));
  EXPECT_NEAR(r.p[0], 3 * 0.5 / 1.5, 1e-6);  // weighed without the bias
  EXPECT_NEAR(r.p[1], 3 * 1 / 1.5, 1e-6);
  r.view.over_all = true;
  choose_experts(logits, r.view, 0);
  EXPECT_NEAR(r.p[0], 1.5, 1e-6);
  r.view.sigmoid.groups = 2, r.view.sigmoid.best_groups = 1;
  choose_experts(logits, r.view, 0);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 0}));
}

// As one more expert it makes what shared_up and out_proj do beside the others; but the row between
// those is rounded when it is weighed; and biases, of which there are none, would not be weighed.
TEST(NormRoute, ASharedExpertIsOneMore) {
  constexpr int64_t kTokens = 5, kHidden = 64, kWidth = 32, kExperts = 7, kTopK = 3;
  Random random(5);
  TestWeight router(random, Format::kBF16, 1, kExperts, kHidden),
      up(random, Format::kBF16, kExperts + 1, 2 * kWidth, kHidden, false),
      down(random, Format::kBF16, kExperts + 1, kHidden, kWidth, false);
  const std::vector<uint16_t> weight = random.bf16s(kHidden, 0.3f, 1),
                              gate = random.bf16s(kHidden, 0.5f);
  const Norm norm{weight.data(), 1e-5f};
  const auto first = [](Weight w) { return --w.experts, w; };
  const auto last = [](Weight w) {
    w.codes += (w.experts - 1) * w.rows * w.row_code_bytes();
    return w.experts = 1, w;
  };
  Floats x(random, kTokens, kHidden), d(random, kTokens, kHidden), y(kTokens, kHidden),
      h(kTokens, kHidden), want(kTokens, kHidden), got(kTokens, kHidden);
  TestCtx test(DType::kF32, 1 << 20);
  {
    Floats beside(kTokens, kWidth), u(kTokens * kTopK, kWidth);
    TestRouting r(kTokens, kExperts, kTopK);
    ref::norm_route(test.cx, y.tensor(), h.tensor(), r.view, x.tensor(), d.tensor(), norm,
                    router.view);
    ref::shared_up(test.cx, beside.tensor(), h.tensor(), last(up.view), gate.data(), {});
    ref::out_proj(test.cx, want.tensor(), beside.tensor(), last(down.view),
                  {.num_tokens = kTokens});
    ref::moe_up(test.cx, u.tensor(), h.tensor(), r.view, first(up.view), {});
    r.view.adds = true;
    ref::moe_down(test.cx, want.tensor(), u.tensor(), r.view, first(down.view));
  }
  Floats u(kTokens * (kTopK + 1), kWidth);
  TestRouting r(kTokens, kExperts + 1, kTopK + 1);
  r.view.shared = 1, r.view.shared_gate = gate.data();
  const NormRouteDesc desc{.hidden = kHidden,
                           .experts = kExperts + 1,
                           .top_k = kTopK + 1,
                           .tokens = kTokens,
                           .shared = 1};
  for (const NormRouteKernel* row : kernels_here(norm_route_kernels(), desc)) {
    row->run(test.cx, y.tensor(), h.tensor(), r.view, x.tensor(), d.tensor(), norm, router.view);
    EXPECT_EQ(r.counts.back(), kTokens);
    ref::moe_up(test.cx, u.tensor(), h.tensor(), r.view, up.view, {});
    ref::moe_down(test.cx, got.tensor(), u.tensor(), r.view, down.view);
    // A sum of so many products of weights below 1, each rounded twice.
    const float most =
        *std::ranges::max_element(u.values, {}, [](float v) { return std::fabs(v); });
    const float error = 2 * kEps * (kTopK + 1) * kWidth * std::fabs(most);
    for (int64_t i = 0; i < kTokens * kHidden; ++i)
      EXPECT_NEAR(got.values[i], want.values[i], error) << row->name;
  }
}

TEST(NormRoute, ChoosesTheLargestLowestIdOnTies) {
  const float logits[] = {1, 3, 2, 3, 0};
  int32_t ids[5];
  float p[5];
  choose_experts(logits, 5, 3, ids, p);
  EXPECT_EQ(std::vector<int32_t>(ids, ids + 3), (std::vector<int32_t>{1, 3, 2}));
  const double sum = 2 + std::exp(-1);
  EXPECT_NEAR(p[0], 1 / sum, 1e-7);
  EXPECT_NEAR(p[2], std::exp(-1) / sum, 1e-7);
  choose_experts(logits, 5, 5, ids, p);
  EXPECT_EQ(std::vector<int32_t>(ids, ids + 5), (std::vector<int32_t>{1, 3, 2, 0, 4}));
  choose_experts(logits, 5, 3, ids, p, /*over_all=*/true);
  const double all = sum + std::exp(-2) + std::exp(-3);
  EXPECT_NEAR(p[0], 1 / all, 1e-7);
  EXPECT_NEAR(p[2], std::exp(-1) / all, 1e-7);
  choose_experts(logits, 1, 1, ids, p);
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ(p[0], 1);
}

}  // namespace
}  // namespace nibble::ops
