#include <gtest/gtest.h>

#include "ops/attention/attention_test_problem.h"
#include "ops/gpu_test_problem.h"

namespace nibble::ops {
namespace {

struct Case {
  const char* name;
  AttentionDesc desc;
  int32_t page_size;
  bool sinks;
  std::vector<std::pair<int32_t, int32_t>> parts;
  std::vector<int32_t> needles = {};  // of the first part
  int num_sms = 0;                    // as if the GPU had so many: shares of keys become longer
};

std::vector<Case> cases() {
  const AttentionDesc full{64, 8, 64, 0}, window{64, 8, 64, 128}, tiny{8, 2, 64, 32};
  std::vector<std::pair<int32_t, int32_t>> batch;
  for (int i = 0; i < 130; ++i) batch.push_back({1, i * 7});
  std::vector<std::pair<int32_t, int32_t>> pairs;  // more than a warp has lanes
  for (int i = 0; i < 70; ++i) pairs.push_back({1 + i % 3, i * 5});
  std::vector<std::pair<int32_t, int32_t>> few_keys;
  for (int i = 0; i < 60; ++i) few_keys.push_back({1, i * i % 512});
  std::vector<std::pair<int32_t, int32_t>> many_keys, mixed, few_long;
  for (int i = 0; i < 24; ++i) many_keys.push_back({1, i * i * 3 % 1700});
  for (int i = 0; i < 72; ++i) mixed.push_back({1 + i % 2 * (i % 5), i * 29});
  for (int i = 0; i < 6; ++i) few_long.push_back({1, 3100 - 600 * i});
  return {
      {"edges of tiles", full, 16, true, {{1, 0}, {1, 14}, {1, 15}, {1, 16}, {1, 17}, {1, 127}}},
      {"edges of splits", full, 16, true, {{1, 126}, {1, 128}, {1, 511}, {1, 512}, {1, 1000}}},
      {"splits that grow", full, 32, true, {{1, 4095}, {1, 4096}, {1, 8191}, {1, 9000}}},
      {"edges of the window", window, 16, true, {{1, 0}, {1, 126}, {1, 127}, {1, 128}, {1, 300}}},
      {"every token by itself", full, 16, true, {{40, 110}, {3, 0}, {1, 77}}},
      {"the same in a window", window, 64, true, {{40, 110}, {150, 0}, {1, 500}}},
      {"more than a launch takes", {8, 1, 64, 0}, 16, true, batch},
      {"many sequences of few keys", full, 16, true, few_keys},
      {"the same with chunks among them", {24, 8, 64, 0}, 32, false, pairs},
      {"many sequences in a window", window, 32, true, few_keys},
      {"many short spans", {8, 1, 64, 0}, 16, true, pairs},
      {"many short spans in a window", {4, 2, 64, 40}, 16, true, pairs},
      {"the tiny model", tiny, 16, true, {{1, 5}, {33, 20}, {1, 100}}},
      {"three heads, no sinks", {9, 3, 64, 33}, 16, false, {{1, 50}, {20, 3}}},
      {"a prompt", full, 16, true, {{300, 0}}},
      {"a prompt in a window", window, 16, true, {{300, 5}}},
      {"chunks and single tokens",
       full,
       32,
       true,
       {{1, 700}, {70, 600}, {1, 3}, {16, 0}, {17, 64}}},
      {"chunks in a window", window, 16, true, {{100, 1000}, {2, 127}, {1, 200}, {65, 190}}},
      {"chunks of the tiny model", tiny, 16, false, {{100, 0}, {1, 30}, {31, 33}}},
      {"Llama and Qwen3",
       {32, 8, 128, 0},
       16,
       false,
       {{1, 700}, {70, 600}, {1, 3}, {16, 0}, {1, 255}}},
      {"Qwen3-MoE", {32, 4, 128, 0}, 64, false, {{1, 4200}, {1, 8200}, {1, 15}, {1, 0}}},
      {"its prompt", {32, 4, 128, 0}, 16, false, {{300, 5}, {200, 0}, {1, 900}}},
      {"five heads a group", {10, 2, 128, 0}, 16, false, {{130, 40}, {1, 500}, {5, 1500}}},
      {"16 heads a group", {32, 2, 128, 0}, 32, true, {{50, 300}, {1, 2100}, {1, 90}, {3, 700}}},
      {"ten heads in a window", {20, 2, 128, 100}, 16, true, {{150, 500}, {1, 300}, {1, 20}}},
      {"Qwen3-Next", {16, 2, 256, 0}, 16, false, {{1, 700}, {120, 200}, {1, 5000}, {40, 0}}},
      {"its prompt", {16, 2, 256, 0}, 64, false, {{300, 77}}},
      {"256 dims, sinks and a window", {6, 2, 256, 90}, 16, true, {{1, 400}, {100, 100}, {1, 9}}},
      {"16 heads of 256 dims", {16, 1, 256, 0}, 16, true, {{1, 1200}, {33, 60}}},
      {"many sequences of 128 dims, split", {32, 8, 128, 0}, 16, true, many_keys},
      {"many sequences, split", {64, 8, 64, 0}, 32, true, many_keys},
      {"many of 256 dims, with chunks", {16, 2, 256, 0}, 16, true, mixed},
      {"few keys, 256 dims", {48, 6, 256, 0}, 16, false, few_keys},
      {"one short span", full, 16, true, {{4, 4000}}},
      {"one short span in a window", window, 16, true, {{8, 1000}}},
      {"short spans of 128 dims",
       {32, 8, 128, 0},
       16,
       false,
       {{8, 2300}, {2, 513}, {3, 0}, {1, 70}}},
      {"five of 16 heads", {16, 1, 128, 0}, 16, true, {{5, 3100}, {7, 1}}},
      {"a short span of 256 dims", {16, 2, 256, 0}, 64, true, {{7, 1800}, {2, 128}, {1, 999}}},
      {"long shares", {4, 2, 64, 0}, 16, true, few_long, {}, 2},
      {"long shares of 128 dims", {10, 2, 128, 0}, 32, true, few_long, {}, 3},
      {"long shares of 256 dims", {3, 1, 256, 2100}, 16, true, few_long, {}, 1},
      {"one head", {2, 2, 64, 0}, 16, true, {{1, 200}}},
      {"pairs of dims", {6, 2, 2, 0}, 16, true, {{40, 0}, {1, 30}}},
      {"18 dims in pages of 5", {3, 3, 18, 7}, 5, true, {{21, 3}, {1, 60}}},
      {"80 dims", {10, 2, 80, 0}, 16, false, {{70, 100}, {1, 1500}, {2, 1023}}},
      {"twenty heads of 130 dims", {20, 1, 130, 0}, 16, true, {{9, 50}, {1, 2050}}},
      {"256 dims in a window", {4, 2, 256, 1100}, 64, true, {{17, 1020}, {1, 3000}, {1, 0}}},
      {"512 dims", {3, 1, 512, 0}, 16, true, {{33, 10}, {1, 1100}}},
      {"a long prompt's end", {40, 2, 96, 0}, 16, true, {{30, 2040}}},
      {"many sequences of 128 dims", {16, 8, 128, 0}, 16, true, few_keys},
      {"splits of 8,192 keys", {2, 1, 34, 0}, 16, true, {{1, 16383}, {2, 24575}, {1, 33000}}},
  };
}

// Against the twin: scores are off by the roundings of D products and sums, which tensor cores
// truncate (twice the error), and by three more; at most |q||k| scale, |q|^2 and |k|^2 below 4 D
// but for 1 in 10^9. A weight is off by twice that, by the sum over the keys, by 2^-9 where it
// becomes bf16, and by 2^-22 of the fast exponential.
double tolerance(const AttentionDesc& d, float scale, int32_t pos, double want, double abs) {
  const double score_error = 2.0 * (d.head_dim + 3) * kEps * 4 * d.head_dim * scale;
  const double weight_error = 2 * score_error + (pos + 32) * kEps + 0x1p-8;
  return weight_error * abs + store_error(DType::kBF16, want);
}

struct GpuAttention {
  GpuAttention(const AttentionDesc& desc, const KvLayer& kv, int64_t slots, const uint16_t* sinks,
               AttentionParams params)
      : desc(desc), gpu(gpu::scratch_bytes(desc)), kv(gpu.kv(kv, slots)), params(params) {
    if (sinks != nullptr) this->params.sinks = gpu.array(sinks, desc.q_heads);
  }
  Floats run(const AttentionKernel& row, const Tensor& q, const Step& step) {
    const Tensor att = gpu.output(DType::kBF16, {step.num_tokens, q.shape[1]});
    row.run(gpu.cx, att, q, kv, params, gpu.step(step));
    return gpu.floats(att);
  }
  AttentionDesc desc;
  GpuProblem gpu;
  KvLayer kv;
  AttentionParams params;
};

void check(const Case& c, DType kv_dtype) {
  Random random(11);
  const TestStep step(c.parts);
  AttentionDesc desc = c.desc;
  desc.tokens = step.view.num_tokens;
  Pages pages(random, desc, kv_dtype, c.page_size, step.lengths);
  const int64_t width = desc.q_heads * desc.head_dim, tokens = step.view.num_tokens;
  const std::vector<uint16_t> sinks = random.bf16s(desc.q_heads);
  const AttentionParams params{.scale = 0.125f,
                               .window = static_cast<int32_t>(desc.window),
                               .sinks = c.sinks ? sinks.data() : nullptr};
  Floats q(random, tokens, width, DType::kBF16);
  if (!c.needles.empty()) plant_needles(random, pages.layer(), desc, c.needles, q);
  Floats host_q = q, want(tokens, width), abs(tokens, width);
  TestCtx exact(DType::kF32, 0, 1);
  ref::attention(exact.cx, want.tensor(), host_q.tensor(), pages.layer(), params, step.view);
  ref::attention(exact.cx, abs.tensor(), host_q.tensor(), pages.magnitudes(), params, step.view);
  GpuAttention on(desc, pages.layer(), static_cast<int64_t>(c.parts.size()), params.sinks, params);
  if (c.num_sms > 0) on.gpu.cx.kernels.gpu.num_sms = c.num_sms;
  const Tensor gpu_q = on.gpu.tensor(q, DType::kBF16);
  for (const AttentionKernel* row : kernels_here(attention_kernels(), desc, on.gpu.cx.kernels)) {
    // The others take pages of 16, 32, 64, .. positions; engines have no others.
    if (c.page_size % 16 != 0 && std::string_view(row->name) != "cuda_any") continue;
    SCOPED_TRACE(row->name);
    KernelOptions exactly = on.gpu.cx.kernels;
    exactly.exact = true;
    const bool is_exact = row->refuse(desc, exactly) == nullptr;
    const Floats got = on.run(*row, gpu_q, step.view);
    EXPECT_EQ(got.values, on.run(*row, gpu_q, step.view).values);
    for (const Span& span : step.spans)
      for (int64_t t = span.q_start; t < span.q_start + span.q_len; ++t) {
        for (int64_t n = 0; n < width; ++n)
          ASSERT_NEAR(got.at(t, n), want.at(t, n),
                      tolerance(desc, params.scale, step.positions[t], want.at(t, n), abs.at(t, n)))
              << "token " << t << " column " << n;
        if (!is_exact) continue;
        // The same bits alone.
        const Span one{0, 1, step.positions[t], span.slot};
        const Step single{
            .num_tokens = 1, .num_spans = 1, .positions = &step.positions[t], .spans = &one};
        Tensor qt = make_tensor(gpu_q.as<uint16_t>() + t * width, DType::kBF16, {1, width});
        const Floats alone = on.run(*row, qt, single);
        ASSERT_TRUE(std::equal(alone.values.begin(), alone.values.end(), got.row(t)))
            << "token " << t;
      }
    EXPECT_TRUE(on.gpu.counters_are_zero());
  }
}

// Of the cases, every kParts-th: the twins take most of the time, and parts run side by side.
constexpr size_t kParts = 4;
class AttentionCasesGpu : public testing::TestWithParam<std::tuple<DType, size_t>> {};

TEST_P(AttentionCasesGpu, EveryKernelEqualsTheTwinAndItselfAlone) {
  const auto [kv, part] = GetParam();
  const std::vector<Case> all = cases();
  for (size_t i = part; i < all.size(); i += kParts) {
    const Case& c = all[i];
    SCOPED_TRACE(testing::Message() << c.name << ", " << dtype_name(kv));
    int64_t pairs = 0;  // of tokens and keys
    for (const auto& [len, context] : c.parts) pairs += len * (context + len);
    if (!is_too_slow(pairs)) check(c, kv);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionCasesGpu,
                         testing::Combine(testing::Values(DType::kBF16, DType::kF8E4M3),
                                          testing::Range(size_t{0}, kParts)));

// Of 131,072, by itself and as the end of a chunk, which other kernels serve.
TEST(AttentionGpu, LastPositionOfTheLongestContext) {
  const std::vector<int32_t> needles = {0, 1, 65535, 131065, 131071};
  const Case one{"131,072 keys", {8, 1, 64, 0}, 16, true, {{1, 131071}}, needles};
  check(one, DType::kBF16);
  if (is_too_slow(131072)) return;
  check(one, DType::kF8E4M3);
  check({"beyond", {8, 1, 128, 0}, 16, true, {{1, 140000}}, {0, 131072, 139999}}, DType::kBF16);
  check({"the same in a chunk", one.desc, 16, true, {{5, 131067}}, needles}, DType::kBF16);
}

TEST(AttentionGpu, SinksOfAnySize) {
  const AttentionDesc desc{1, 1, 64, 0};
  std::vector<float> k(48 * 64, 0.f), v(48 * 64, 1.f);
  k[0] = 30;  // scores 30, then zeros
  std::vector<uint16_t> k16, v16, sinks(1);
  for (const float x : k) k16.push_back(bf16_from_float(x));
  for (const float x : v) v16.push_back(bf16_from_float(x));
  const std::vector<int32_t> table = {0, 1, 2}, positions = {39};
  const KvLayer kv{make_tensor(k16.data(), DType::kBF16, {3, 1, 16, 64}),
                   make_tensor(v16.data(), DType::kBF16, {3, 1, 16, 64}), table.data(), 3, 16};
  const Span span{0, 1, 39, 0};
  const Step step{.num_tokens = 1, .num_spans = 1, .positions = positions.data(), .spans = &span};
  Floats q(1, 64);
  q.values[0] = 1;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {-infinity, -3e38f, -200.f, 0.f, 30.f, 60.f, 200.f}) {
    sinks[0] = bf16_from_float(value);
    const double keys = 1 + 39 * std::exp(-30.0), by_sink = std::exp(double{value} - 30);
    GpuAttention on(desc, kv, 1, sinks.data(), {.scale = 1});
    const Tensor gpu_q = on.gpu.tensor(q, DType::kBF16);
    for (const AttentionKernel* row : kernels_here(attention_kernels(), desc, on.gpu.cx.kernels)) {
      const double want = keys / (keys + by_sink);
      // Half a unit of bf16 where it is stored; exponentials below 2^-126 are zero.
      EXPECT_NEAR(on.run(*row, gpu_q, step).at(0, 0), want, 0x1p-8 * want + 1e-37)
          << row->name << " sink " << value;
    }
  }
}

// A damaged key makes every token that sees it NaN, as the twin does, and no token before it.
TEST(AttentionGpu, DamagedKeysShow) {
  const AttentionDesc desc{4, 1, 64, 0, 3};
  std::vector<uint16_t> k(16 * 64, bf16_from_float(1)), v(16 * 64, bf16_from_float(2));
  k[64 + 5] = bf16_from_float(std::numeric_limits<float>::quiet_NaN());  // position 1
  const std::vector<int32_t> table = {0}, positions = {0, 1, 2};
  const KvLayer kv{make_tensor(k.data(), DType::kBF16, {1, 1, 16, 64}),
                   make_tensor(v.data(), DType::kBF16, {1, 1, 16, 64}), table.data(), 1, 16};
  const Span span{0, 3, 0, 0};
  const Step step{.num_tokens = 3, .num_spans = 1, .positions = positions.data(), .spans = &span};
  Floats q(3, 256);
  std::fill(q.values.begin(), q.values.end(), 1.f);
  GpuAttention on(desc, kv, 1, nullptr, {.scale = 1});
  const Tensor gpu_q = on.gpu.tensor(q, DType::kBF16);
  for (const AttentionKernel* row : kernels_here(attention_kernels(), desc, on.gpu.cx.kernels)) {
    const Floats got = on.run(*row, gpu_q, step);
    for (int64_t n = 0; n < 256; ++n) {
      EXPECT_EQ(got.at(0, n), 2) << row->name;
      EXPECT_TRUE(std::isnan(got.at(1, n)) && std::isnan(got.at(2, n))) << row->name;
    }
  }
}

}  // namespace
}  // namespace nibble::ops
