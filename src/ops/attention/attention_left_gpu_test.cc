#include <gtest/gtest.h>

#include "ops/attention/attention_test_problem.h"
#include "ops/gpu_test_problem.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/site.h"

namespace nibble::ops {
namespace {

struct Case {
  const char* name;
  int64_t q_heads, kv_heads;
  bool norms_heads;
  int32_t page_size;
  std::vector<int32_t> contexts;  // of each token's sequence
  int32_t window = 0;
  bool sinks = false;
};
constexpr int64_t kDim = 128, kHidden = 128;

struct Result {
  std::vector<float> att;
  std::vector<uint8_t> k, v;
};

template <typename Row>
const Row& row_of(std::span<const Row> rows, std::string_view name) {
  const auto row = std::ranges::find(rows, name, &Row::name);
  CHECK(row != rows.end());
  return *row;
}

// norm_qkv, then attention, which `takes` its heads as products or not.
Result run(const Case& c, const NormQkvKernel& row, const TestWeight& w, const Pages& pages,
           const TestStep& step, const AttentionParams& params, Random random, bool takes) {
  const int64_t tokens = step.view.num_tokens, width = c.q_heads * kDim;
  const AttentionDesc desc{c.q_heads, c.kv_heads, kDim, c.window, tokens};
  const NormQkvDesc heads{.hidden = kHidden,
                          .q_heads = c.q_heads,
                          .kv_heads = c.kv_heads,
                          .head_dim = kDim,
                          .format = w.view.format,
                          .tokens = tokens,
                          .norms_heads = c.norms_heads};
  EXPECT_TRUE(may_leave_heads(heads));
  GpuProblem gpu(std::max(gpu::scratch_bytes(desc), gpu::scratch_bytes(heads)));
  const Floats x(random, tokens, kHidden), d(random, tokens, kHidden), angles(random, tokens, kDim);
  const auto norm = [&](int64_t n, float eps, float offset) {
    return Norm{gpu.array(random.bf16s(n, 0.3f, 1 - offset)), eps, offset};
  };
  QkvNorms norms{norm(kHidden, 1e-5f, 0)};
  if (c.norms_heads) norms.q = norm(kDim, 1e-6f, 0), norms.k = norm(kDim, 1e-4f, 1);
  const KvLayer kv = gpu.kv(pages.layer(), tokens);
  const NormQkvOut out{gpu.output(DType::kBF16, {tokens, width}),
                       gpu.output(DType::kBF16, {tokens, kHidden}),
                       gpu.output(DType::kF32, {tokens, kHidden})};
  const Tensor products = gpu.output(DType::kF32, {tokens, rows_of(heads)}),
               att = gpu.output(DType::kBF16, {tokens, width});
  Site site{.problem = heads};
  site.readers_take = takes ? static_cast<int32_t>(tokens) : 0;
  gpu.cx.site = &site;
  gpu.cx.left_heads.products = products.as<float>();
  AttentionParams on_gpu = params;
  if (params.sinks != nullptr) on_gpu.sinks = gpu.array(params.sinks, c.q_heads);
  const Step s = gpu.step(step.view);
  row.run(gpu.cx, out, kv, gpu.tensor(x, DType::kF32), gpu.tensor(d, DType::kF32), norms,
          gpu.weight(w), gpu.tensor(angles, DType::kF32), s);
  EXPECT_EQ(gpu.cx.left_heads.are_left, takes);
  row_of(attention_kernels(), "sm90_bf16_spans").run(gpu.cx, att, out.q, kv, on_gpu, s);
  Result result{gpu.floats(att).values, gpu.bytes(kv.k), gpu.bytes(kv.v)};
  EXPECT_TRUE(gpu.counters_are_zero());
  return result;
}

void check(const Case& c, DType kv, Format format, const char* row_name) {
  Random random(7);
  std::vector<std::pair<int32_t, int32_t>> parts;
  for (const int32_t context : c.contexts) parts.emplace_back(1, context);
  const TestStep step(parts);
  Pages pages(random, {c.q_heads, c.kv_heads, kDim}, kv, c.page_size, step.lengths);
  const std::vector<uint16_t> sinks = random.bf16s(c.q_heads);
  const AttentionParams params{
      .scale = 0.09f, .window = c.window, .sinks = c.sinks ? sinks.data() : nullptr};
  TestWeight w(random, format, 1, (c.q_heads + 2 * c.kv_heads) * kDim, kHidden);
  const NormQkvKernel& row = row_of(norm_qkv_kernels(), row_name);
  if (row.layout != w.view.layout) w.pack(row.layout);
  const Result apart = run(c, row, w, pages, step, params, random, false);
  const Result together = run(c, row, w, pages, step, params, random, true);
  EXPECT_EQ(together.k, apart.k);
  EXPECT_EQ(together.v, apart.v);
  for (const float x : apart.att) ASSERT_TRUE(std::isfinite(x));
  EXPECT_EQ(together.att, apart.att);
}

// The heads of q and k, keys and values are those that norm_qkv stores, to the bit, and so is what
// attention makes of them.
TEST(AttentionLeftGpu, HeadsAreAsNormQkvStoresThem) {
  if (cuda::open_device().sm != 90) GTEST_SKIP() << "the row is Hopper's";
  const std::vector<Case> cases = {
      {"Qwen3-8B, one token", 32, 8, true, 16, {511}},
      {"Qwen3-30B-A3B, one token", 32, 4, true, 64, {300}},
      {"the first token", 32, 8, true, 16, {0}},
      {"edges of tiles", 4, 1, true, 16, {14, 15, 16, 17, 7, 8, 127, 128}},
      {"Llama-3.1-8B", 32, 8, false, 16, {255, 3, 130, 256, 90, 511, 40, 1}},
      {"long texts", 8, 1, true, 32, {5000, 4095, 2048}},
      {"one long text", 8, 2, true, 32, {9000}},
      {"16 heads a group", 16, 1, true, 16, {700, 20}},
      {"five heads a group, in a window, with sinks", 10, 2, false, 16, {300, 99, 100}, 100, true},
  };
  for (const Case& c : cases)
    for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
      SCOPED_TRACE(testing::Message() << c.name << ", " << dtype_name(kv));
      check(c, kv, Format::kBF16, "cuda_bf16_rows");
    }
  check(cases[3], DType::kBF16, Format::kNvfp4, "cuda_nvfp4_decode");
  check(cases[0], DType::kBF16, Format::kNvfp4, "cuda_nvfp4_one");
}

}  // namespace
}  // namespace nibble::ops
