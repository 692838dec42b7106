#include <gtest/gtest.h>

#include <memory>

#include "ops/gpu_test_problem.h"
#include "ops/matmul_ref.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/norm_ref.h"
#include "ops/norm_route/norm_route_test_problem.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t hidden, experts, top_k;
};
constexpr Shape kShapes[] = {{2880, 128, 4},   {2880, 32, 4},  {256, 8, 4}, {4096, 300, 8},
                             {512, 512, 10},   {72, 5, 2},     {160, 3, 3}, {33, 7, 3},
                             {1001, 1000, 32}, {50, 1024, 31}, {1, 1, 1},   {9301, 17, 5}};

struct Problem {
  Problem(const Shape& shape, int64_t tokens, bool over_all = false,
          const SigmoidRoute& sigmoid = {}, Format format = Format::kBF16, int64_t shared = 0)
      : shape(shape),
        tokens(tokens),
        over_all(over_all),
        shared(shared),
        sigmoid(sigmoid),
        random(static_cast<uint32_t>(shape.experts + tokens)),
        router(random, format, 1, shape.experts - shared, shape.hidden),
        weight(random.bf16s(shape.hidden, 0.3f, 1)),
        x(random, tokens, shape.hidden),
        d(random, tokens, shape.hidden),
        y(tokens, shape.hidden),
        h(tokens, shape.hidden),
        bias(random.normals(shape.experts, 0.1f)),
        gate(random.bf16s(shape.hidden, 0.1f)) {
    ref::add(y.values.data(), x.values.data(), d.values.data(), tokens * shape.hidden);
    const Norm norm{weight.data(), 1e-5f};
    for (int64_t t = 0; t < tokens; ++t)
      ref::rms_norm(DType::kBF16, h.values.data() + t * shape.hidden, y.row(t), norm, shape.hidden);
  }
  Shape shape;
  int64_t tokens;
  bool over_all = false;
  int64_t shared = 0;
  SigmoidRoute sigmoid;
  Random random;
  TestWeight router;
  std::vector<uint16_t> weight;
  Floats x, d, y, h;
  std::vector<float> bias;
  std::vector<uint16_t> gate;  // of one shared expert; two have none
};

struct Result {
  Floats y{0, 0}, h{0, 0};
  TestRouting routing;
  Result(int64_t tokens, const Shape& s) : routing(tokens, s.experts, s.top_k) {}
};

// Of tokens [first, first + n) of the problem.
std::unique_ptr<Result> run(GpuProblem& gpu, const NormRouteKernel& row, const Problem& p,
                            int64_t first, int64_t n) {
  const int64_t hidden = p.shape.hidden;
  const auto part = [&](const Floats& all) {
    Floats some(n, hidden);
    std::copy_n(all.row(first), n * hidden, some.values.begin());
    return gpu.tensor(some, DType::kF32);
  };
  auto result = std::make_unique<Result>(n, p.shape);
  Routing routing = gpu.routing_output(result->routing);
  routing.over_all = p.over_all, routing.sigmoid = p.sigmoid;
  if (p.sigmoid.is_used) routing.bias = gpu.array(p.bias);
  routing.shared = static_cast<int32_t>(p.shared);
  if (p.shared == 1) routing.shared_gate = gpu.array(p.gate);
  const Tensor y = gpu.output(DType::kF32, {n, hidden}), h = gpu.output(DType::kBF16, {n, hidden});
  row.run(gpu.cx, y, h, routing, part(p.x), part(p.d), {gpu.array(p.weight), 1e-5f},
          gpu.weight(p.router));
  result->y = gpu.floats(y), result->h = gpu.floats(h);
  gpu.read_back(result->routing, routing);
  return result;
}

// A token's last choices are the last experts. One is weighed by the sigmoid of its gate: that
// moves by at most a quarter of what the logit does, and the fast exponential is off by 2^-21.
void check_shared(const Problem& p, const Result& got, int64_t token) {
  for (int64_t i = 1; i <= p.shared; ++i) {
    const auto at = static_cast<size_t>((token + 1) * p.shape.top_k - i);
    EXPECT_EQ(got.routing.ids[at], p.shape.experts - i) << "token " << token;
    if (p.shared > 1) {
      EXPECT_EQ(got.routing.p[at], 1) << "token " << token;
    }
  }
  if (p.shared != 1) return;
  double logit = 0, abs = 0;
  for (int64_t i = 0; i < p.shape.hidden; ++i) {
    const double term = double{got.h.row(token)[i]} * bf16_to_float(p.gate[i]);
    logit += term, abs += std::fabs(term);
  }
  EXPECT_NEAR(got.routing.p[(token + 1) * p.shape.top_k - 1], 1 / (1 + std::exp(-logit)),
              dot_error(p.shape.hidden) * abs / 4 + 4 * kEps + 0x1p-20);
}

// Choices where the twin's logits of the kernel's own h are further apart than twice their error;
// the rest need only be experts. Returns how many tokens were that clear.
int64_t check_choices(const Problem& p, const Result& got) {
  const Shape& s = p.shape;
  const int64_t experts = s.experts - p.shared, top_k = s.top_k - p.shared;
  int64_t clear_tokens = 0;
  for (int64_t t = 0; t < p.tokens; ++t) {
    check_shared(p, got, t);
    std::vector<float> logits(experts);
    double error = 0;
    for (int64_t e = 0; e < experts; ++e) {
      double abs;
      logits[e] = static_cast<float>(ref::Row(p.router.view, 0, e).dot(got.h.row(t), &abs));
      error = std::max(error, (dot_error(s.hidden) + kEps) * abs);
    }
    TestRouting one(1, experts, top_k);
    one.view.over_all = p.over_all, one.view.sigmoid = p.sigmoid;
    one.view.bias = p.bias.data();
    const bool clear = is_clear(logits, one, error);
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t id = got.routing.ids[t * s.top_k + k];
      EXPECT_TRUE(id >= 0 && id < experts) << "token " << t;
      if (!clear) continue;
      EXPECT_EQ(id, one.ids[k]) << "token " << t;
      // The fast exponential is off by 2^-21 of its result for arguments that matter.
      EXPECT_NEAR(got.routing.p[t * s.top_k + k], one.p[k],
                  one.p[k] * (4 * error + 4 * kEps + 0x1p-20));
    }
    clear_tokens += clear;
  }
  return clear_tokens;
}

int64_t check(const Shape& shape, int64_t tokens, bool exact, bool over_all = false,
              const SigmoidRoute& sigmoid = {}, Format format = Format::kBF16, int64_t shared = 0) {
  int64_t clear_tokens = 0;
  const Problem p(shape, tokens, over_all, sigmoid, format, shared);
  NormRouteDesc desc{shape.hidden, shape.experts, shape.top_k, format,
                     tokens,       over_all,      sigmoid,     shared};
  GpuProblem gpu(gpu::scratch_bytes(desc), exact);
  for (const NormRouteKernel* row : kernels_here(norm_route_kernels(), desc, gpu.cx.kernels)) {
    SCOPED_TRACE(row->name);
    const auto result = run(gpu, *row, p, 0, tokens);
    const Result& got = *result;
    EXPECT_EQ(got.y.values, p.y.values);
    for (size_t i = 0; i < p.h.values.size(); ++i)
      EXPECT_NEAR(got.h.values[i], p.h.values[i],
                  norm_error(DType::kBF16, shape.hidden) * std::fabs(p.h.values[i]));
    clear_tokens += check_choices(p, got);
    // Seen from the experts: what sort_by_expert() makes of the same choices.
    TestRouting want(tokens, shape.experts, shape.top_k);
    want.ids = got.routing.ids;
    want.view.ids = want.ids.data();
    sort_by_expert(want.view);
    EXPECT_EQ(got.routing.counts, want.counts);
    EXPECT_EQ(got.routing.offsets, want.offsets);
    EXPECT_EQ(got.routing.slot, want.slot);
    EXPECT_EQ(got.routing.token, want.token);
    const auto again = run(gpu, *row, p, 0, tokens);
    EXPECT_EQ(got.routing.ids, again->routing.ids);
    EXPECT_EQ(got.routing.p, again->routing.p);
    EXPECT_EQ(got.h.values, again->h.values);
    if (exact) {
      // The same bits alone.
      const auto alone = run(gpu, *row, p, tokens - 1, 1);
      EXPECT_TRUE(std::equal(alone->routing.p.begin(), alone->routing.p.end(),
                             got.routing.p.end() - shape.top_k));
      EXPECT_TRUE(std::equal(alone->routing.ids.begin(), alone->routing.ids.end(),
                             got.routing.ids.end() - shape.top_k));
      EXPECT_TRUE(
          std::equal(alone->h.values.begin(), alone->h.values.end(), got.h.row(tokens - 1)));
    }
    EXPECT_TRUE(gpu.counters_are_zero());
  }
  return clear_tokens;
}

TEST(NormRouteGpu, EveryKernelEqualsTheTwin) {
  for (const Shape& shape : kShapes) {
    int64_t tokens_clear = 0, tokens_all = 0;
    bool is_whole = true;
    for (const int64_t tokens : {1, 2, 8, 9, 33, 300, 1100})
      for (const bool exact : {false, true}) {
        if (is_too_slow(shape.hidden * tokens)) {
          is_whole = false;
          continue;
        }
        SCOPED_TRACE(testing::Message() << shape.experts << " experts, " << tokens << " tokens");
        tokens_clear += check(shape, tokens, exact);
        tokens_all += tokens;
        if (exact) continue;
        tokens_clear += check(shape, tokens, exact, /*over_all=*/true);
        tokens_all += tokens;
      }
    if (is_whole) {
      EXPECT_GE(tokens_clear, tokens_all / 4) << shape.experts << " experts";
    }
  }
}

// An expert that every token meets, or two, beside 512, few, and those that no kernel is made for.
TEST(NormRouteGpu, SharedExpertsAreTheLast) {
  int64_t clear = 0;
  for (const Shape& shape : {Shape{512, 513, 11}, Shape{256, 9, 3}, Shape{2048, 129, 9},
                             Shape{33, 8, 4}, Shape{50, 1025, 32}})
    for (const int64_t tokens : {1, 3, 9, 130, 1100}) {
      if (is_too_slow(shape.hidden * tokens)) continue;
      SCOPED_TRACE(testing::Message() << shape.experts << " experts, " << tokens << " tokens");
      for (const bool exact : {false, true})
        for (const int64_t shared : {1, 2})
          clear += check(shape, tokens, exact, false, {}, Format::kBF16, shared);
      clear += check(shape, tokens, false, true, {.is_used = true}, Format::kBF16, 1);
      clear += check(shape, tokens, false, false, {.is_used = true}, Format::kBF16, 2);
    }
  EXPECT_GT(clear, 20);
}

// Of sigmoids near ties are more.
TEST(NormRouteGpu, Sigmoids) {
  constexpr SigmoidRoute kPlain{.is_used = true, .scale = 2.5f},
      kGroups{.is_used = true, .groups = 4, .best_groups = 2};
  int64_t clear = 0;
  for (const Shape& shape : {Shape{2688, 128, 6}, Shape{4096, 300, 8}, Shape{72, 12, 3}})
    for (const int64_t tokens : {1, 7, 33, 1100}) {
      if (is_too_slow(shape.hidden * tokens)) continue;
      SCOPED_TRACE(testing::Message() << shape.experts << " experts, " << tokens << " tokens");
      for (const bool exact : {false, true}) clear += check(shape, tokens, exact, false, kPlain);
      clear += check(shape, tokens, false, true, kPlain);
      clear += check(shape, tokens, false, false, kGroups);
      clear += check(shape, tokens, false, false, kPlain, Format::kF32);
      check(shape, tokens, false, false, {}, Format::kF32);
    }
  EXPECT_GT(clear, 100);
}

// Every `apart`-th expert has the same logit.
void make_ties(Problem& p, int apart) {
  std::fill(p.router.codes.begin(), p.router.codes.end(), uint8_t{0});
  for (size_t e = 0; e < p.router.bias.size(); ++e)
    p.router.bias[e] = bf16_from_float(static_cast<float>(static_cast<int>(e) % apart));
}

// Equal logits: the lower expert first.
void check_ties(int64_t experts, int apart) {
  const Shape shape{64, experts, 4};
  Problem p(shape, 3);
  make_ties(p, apart);
  NormRouteDesc desc{shape.hidden, shape.experts, shape.top_k, Format::kBF16, 3};
  GpuProblem gpu(gpu::scratch_bytes(desc));
  for (const NormRouteKernel* row : kernels_here(norm_route_kernels(), desc, gpu.cx.kernels)) {
    const auto got = run(gpu, *row, p, 0, 3);
    for (int t = 0; t < 3; ++t)
      for (int k = 0; k < 4; ++k) {
        EXPECT_EQ(got->routing.ids[4 * t + k], apart - 1 + apart * k) << row->name;
        EXPECT_EQ(got->routing.p[4 * t + k], 0.25f) << row->name;
      }
  }
}

TEST(NormRouteGpu, TiesGoToTheLowerExpert) {
  check_ties(40, 3);
  check_ties(400, 3);   // more than a warp ranks side by side
  check_ties(400, 40);  // as many
}

// `left`: whose choice was left, and slots of several tokens therefore numbered token by token.
void expect_same_choices(const TestRouting& made, const TestRouting& left, int32_t tokens,
                         int64_t top_k) {
  EXPECT_EQ(made.ids, left.ids);
  EXPECT_EQ(made.p, left.p);
  if (tokens == 1) {
    EXPECT_EQ(made.slot, left.slot);
    EXPECT_EQ(made.token, left.token);
    EXPECT_EQ(made.counts, left.counts);
    EXPECT_EQ(made.offsets, left.offsets);
    return;
  }
  for (int64_t i = 0; i < tokens * top_k; ++i) {
    const int64_t t = i / top_k, slot = left.slot[i];
    const auto mine = std::span(left.ids).subspan(t * top_k, top_k);
    EXPECT_EQ(slot, t * top_k +
                        std::ranges::count_if(mine, [&](int32_t id) { return id < left.ids[i]; }));
    EXPECT_EQ(left.token[slot], t);
  }
}

// Of sigmoids where the experts have no gates, as Nemotron's.
void check_left_choice(const Shape& shape, Format format, int64_t shared = 0,
                       bool by_sigmoids = false, bool has_ties = false, int32_t tokens = 1) {
  SCOPED_TRACE(testing::Message() << shape.experts << " experts, " << tokens << " tokens");
  const int64_t width = 64;
  const SigmoidRoute sigmoid{.is_used = by_sigmoids, .scale = 2.5f};
  const Swiglu act = by_sigmoids ? kRelu2 : kClampedSwiglu;
  Problem p(shape, tokens, false, sigmoid, Format::kBF16, shared);
  if (has_ties) make_ties(p, 3);
  TestWeight up(p.random, format, shape.experts, act.rows_each() * width, shape.hidden);
  TestWeight down(p.random, format, shape.experts, shape.hidden, width);
  up.pack(Layout::kTiles16x64), down.pack(Layout::kTiles16x64);
  const NormRouteDesc route_desc{.hidden = shape.hidden,
                                 .experts = shape.experts,
                                 .top_k = shape.top_k,
                                 .tokens = tokens,
                                 .sigmoid = sigmoid,
                                 .shared = shared};
  const MoeUpDesc up_desc{.hidden = shape.hidden,
                          .width = width,
                          .experts = shape.experts,
                          .top_k = shape.top_k,
                          .format = format,
                          .act = act};
  const MoeDownDesc down_desc{shape.hidden, width, shape.experts, shape.top_k, format, tokens};
  GpuProblem gpu(std::max({gpu::scratch_bytes(route_desc), gpu::scratch_bytes(down_desc)}));
  gpu.cx.kernels.any_size = tokens > 1;  // as on a Hopper, elsewhere too
  Sites sites;
  sites.push_back({.key = {Op::kNormRoute, 0}, .problem = route_desc, .writes = {"routing"}});
  sites.push_back({.key = {Op::kMoeUp, 0}, .problem = up_desc, .reads = {"routing"}});
  sites.push_back({.key = {Op::kMoeDown, 0}, .problem = down_desc, .reads = {"routing"}});
  plan_sites(sites, gpu.cx.kernels);
  ASSERT_GE(sites[0].readers_take, tokens);
  int rows = 0;
  for (const auto* row : kernels_here(norm_route_kernels(), route_desc, gpu.cx.kernels)) {
    const std::string_view name = row->name;
    if (name != "cuda_bf16_few" && name != "cuda_bf16_many") continue;
    SCOPED_TRACE(name);
    ++rows;
    TestRouting routings[2] = {{tokens, shape.experts, shape.top_k},
                               {tokens, shape.experts, shape.top_k}};
    std::vector<float> d[2];
    for (const bool is_left : {false, true}) {
      gpu.cx.site = is_left ? &sites[0] : nullptr;
      Routing routing = gpu.routing_output(routings[is_left]);
      routing.sigmoid = sigmoid;
      if (by_sigmoids) routing.bias = gpu.array(p.bias);
      routing.shared = static_cast<int32_t>(shared);
      if (shared == 1) routing.shared_gate = gpu.array(p.gate);
      routing.room = gpu.output(DType::kF32, {kMostLeft, shape.experts}).as<float>();
      const Tensor h = gpu.output(DType::kBF16, {tokens, shape.hidden});
      const Tensor u = gpu.output(DType::kBF16, {tokens * shape.top_k, width});
      const Tensor out = gpu.output(DType::kF32, {tokens, shape.hidden});
      row->run(gpu.cx, gpu.output(DType::kF32, {tokens, shape.hidden}), h, routing,
               gpu.tensor(p.x, DType::kF32), gpu.tensor(p.d, DType::kF32),
               {gpu.array(p.weight), 1e-5f}, gpu.weight(p.router));
      EXPECT_EQ(routing.logits != nullptr, is_left);
      sites[1].plan.row<MoeUpKernel>(tokens).run(gpu.cx, u, h, routing, gpu.weight(up), act);
      sites[2].plan.row<MoeDownKernel>(tokens).run(gpu.cx, out, u, routing, gpu.weight(down));
      d[is_left] = gpu.floats(out).values;
      gpu.read_back(routings[is_left], routing);
    }
    EXPECT_EQ(d[0], d[1]);
    expect_same_choices(routings[0], routings[1], tokens, shape.top_k);
  }
  EXPECT_GE(rows, shape.hidden % 32 == 0 ? 2 : 1);
}

// The choice may be left to moe_up: the same bits come out of moe_down.
TEST(NormRouteGpu, TheChoiceMayBeLeftToMoeUp) {
  for (const int32_t tokens : {1, 2, 3, 4, 5, 8}) {
    const auto check_mxfp4 = [&](const Shape& shape, int64_t shared = 0) {
      check_left_choice(shape, Format::kMxfp4, shared, false, false, tokens);
    };
    check_mxfp4({is_too_slow(2880) ? 256 : 2880, 128, 4});
    check_mxfp4({128, 200, 8});
    check_mxfp4({128, 65, 8}, /*shared=*/1);
    const auto check = [&](const Shape& shape, int64_t shared = 0, bool by_sigmoids = false,
                           bool has_ties = false) {
      check_left_choice(shape, Format::kNvfp4, shared, by_sigmoids, has_ties, tokens);
    };
    check({128, 128, 8});
    check({128, 512, 10});
    check({128, 513, 11}, /*shared=*/1);
    check({128, 9, 3}, /*shared=*/1);
    check({128, 30, 5}, /*shared=*/2);
    check({128, 130, 8}, /*shared=*/2, /*by_sigmoids=*/true);
    check({128, 300, 6}, /*shared=*/0, /*by_sigmoids=*/true);
    for (const int64_t experts : {40, 400})  // more than a warp ranks side by side
      check({128, experts, 8}, 0, false, /*has_ties=*/true);
    if (tokens == 1 && !is_too_slow(3136)) check({3136, 20, 4});  // more columns than threads have
  }
}

}  // namespace
}  // namespace nibble::ops
