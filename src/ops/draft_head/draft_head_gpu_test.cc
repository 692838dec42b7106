// The CUDA rows of a draft head's own ops against those of the CPU.
#include "ops/draft_head/draft_head.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cpu/thread_pool.h"
#include "ops/gpu_test_problem.h"

namespace nibble::ops {
namespace {

// Norms in float32 of at most 8,640 squares: 2^-24 * sqrt(8640) * a few, far below bf16's rounding
// of what is stored, by which neighbours may differ where a value lies between two.
constexpr double kRounding = 0x1p-7;

TEST(DraftHeadGpu, JoinsRowsAsTheCpuDoes) {
  cpu::ThreadPool pool(2);
  Ctx host;
  host.pool = &pool;
  host.activations = DType::kBF16;
  constexpr int64_t kTokens = 5, kRows = 9;
  for (const int64_t width : {37, 256, 2880})
    for (const int variant : {0, 1, 2, 3}) {
      Random random(static_cast<uint32_t>(width + variant));
      const int64_t parts = variant == 1 ? 2 : 3;
      std::vector<Floats> x, d;
      for (int64_t p = 0; p < parts; ++p)
        x.emplace_back(random, kRows, width), d.emplace_back(random, kRows, width);
      const std::vector<uint16_t> weight = random.bf16s(width), other = random.bf16s(width),
                                  wide = random.bf16s(parts * width);
      const std::vector<int32_t> rows = {8, 0, 3, 3, 7};
      GpuProblem gpu;
      const uint16_t* const on_gpu[] = {gpu.array(weight), gpu.array(other), gpu.array(wide)};
      const uint16_t* const on_host[] = {weight.data(), other.data(), wide.data()};
      const int32_t* const gpu_rows = gpu.array(rows);
      const auto part = [&](bool is_gpu, int64_t p) {
        const uint16_t* const* w = is_gpu ? on_gpu : on_host;
        const auto tensor = [&](const Floats& f) {
          return is_gpu ? gpu.tensor(f, DType::kF32)
                        : make_tensor(const_cast<float*>(f.values.data()), DType::kF32,
                                      {kRows, width});
        };
        RowPart made{.x = tensor(x[p]), .rows = is_gpu ? gpu_rows : rows.data()};
        if (variant == 1 && p == 1) made.d = tensor(d[p]), made.first = {w[1], 1e-6f, 1};
        if (variant != 2) made.norm = {w[0], 1e-5f, variant == 1 ? 1.0f : 0.0f};
        return made;
      };
      std::vector<float> joined(kTokens * parts * width), y(kTokens * width);
      const JoinOut want{make_tensor(joined.data(), DType::kF32, {kTokens, parts * width}),
                         make_tensor(y.data(), DType::kF32, {kTokens, width}), variant == 3};
      const JoinOut got{gpu.output(DType::kBF16, {kTokens, parts * width}),
                        gpu.output(DType::kF32, {kTokens, width}), variant == 3};
      std::vector<RowPart> host_parts, gpu_parts;
      for (int64_t p = 0; p < parts; ++p)
        host_parts.push_back(part(false, p)), gpu_parts.push_back(part(true, p));
      join_rows(host, want, host_parts, variant == 2 ? Norm{on_host[2], 1e-5f} : Norm{});
      join_rows(gpu.cx, got, gpu_parts, variant == 2 ? Norm{on_gpu[2], 1e-5f} : Norm{});
      const Floats got_joined = gpu.floats(got.joined), got_y = gpu.floats(got.y);
      for (size_t i = 0; i < joined.size(); ++i)
        ASSERT_NEAR(got_joined.values[i], joined[i], kRounding * std::fabs(joined[i]))
            << width << " variant " << variant << " at " << i;
      for (size_t i = 0; i < y.size(); ++i)
        ASSERT_NEAR(got_y.values[i], y[i], 1e-5 * std::fabs(y[i]) + 1e-6) << width << variant;
    }
}

// Prompts longer than what is kept, drafts, and single tokens; what no span ends in stays.
TEST(DraftHeadGpu, PutsTheLastRowsOfEachSpanByAsTheCpuDoes) {
  constexpr int32_t kLength = 8, kSlots = 5;
  for (const int64_t width : {3, 2880}) {
    const std::vector<Span> spans = {{.q_start = 0, .q_len = 1, .context = 15, .slot = 3},
                                     {.q_start = 1, .q_len = 21, .context = 2, .slot = 0},
                                     {.q_start = 22, .q_len = 4, .context = 13, .slot = 4}};
    constexpr int32_t kTokens = 26;
    Random random(static_cast<uint32_t>(width));
    const Floats a(random, kTokens, width), b(random, kTokens, width);
    GpuProblem gpu;
    const std::vector<Tensor> from = {gpu.tensor(a, DType::kF32), gpu.tensor(b, DType::kF32)};
    const std::vector<float> zeros(kSlots * kLength * width);
    std::vector<float> host[2] = {zeros, zeros};
    std::vector<Tensor> to, expected, on_host;
    for (size_t p = 0; p < 2; ++p) {
      to.push_back(make_tensor(const_cast<float*>(gpu.array(zeros)), DType::kF32,
                               {kSlots * kLength, width}));
      expected.push_back(make_tensor(host[p].data(), DType::kF32, {kSlots * kLength, width}));
      on_host.push_back(make_tensor(const_cast<float*>((p == 0 ? a : b).values.data()), DType::kF32,
                                    {kTokens, width}));
    }
    Step step{.num_tokens = kTokens, .num_spans = 3, .spans = spans.data()};
    Ctx cpu;
    cpu_rows::put_rows_by(cpu, expected, on_host, kLength, step);
    // By hand: the last of 21 tokens from position 2 on is at 22, the last of the 4 at 16.
    EXPECT_EQ(host[1][(0 * kLength + 22 % kLength) * width], b.values[21 * width]);
    EXPECT_EQ(host[1][(4 * kLength + 16 % kLength) * width + 2], b.values[25 * width + 2]);
    EXPECT_EQ(host[0][(3 * kLength + 15 % kLength) * width], a.values[0]);
    step.spans = gpu.array(spans);
    put_rows_by(gpu.cx, to, from, kLength, step);
    for (size_t p = 0; p < 2; ++p) EXPECT_EQ(gpu.floats(to[p]).values, host[p]) << width << p;
  }
}

TEST(DraftHeadGpu, IdsFollowTheirTables) {
  GpuProblem gpu;
  std::vector<int32_t> table(1000), ids(300);
  for (int32_t i = 0; i < 1000; ++i) table[i] = 3 * i + 1;
  for (int32_t i = 0; i < 300; ++i) ids[i] = 7 * i % 1000;
  auto* const on_gpu = const_cast<int32_t*>(gpu.array(ids));
  translate_ids(gpu.cx, on_gpu, 300, gpu.array(table));
  const auto got = gpu.values<int32_t>(on_gpu, 300);
  for (int32_t i = 0; i < 300; ++i) EXPECT_EQ(got[i], 3 * (7 * i % 1000) + 1);
  const std::vector<int32_t> zeros(20);
  auto* const to = const_cast<int32_t*>(gpu.array(zeros));
  const std::vector<IdCopy> copies = {{3, 10}, {0, 299}, {19, 10}};
  copy_ids(gpu.cx, to, on_gpu, gpu.array(copies), 3);
  const auto copied = gpu.values<int32_t>(to, 20);
  EXPECT_EQ(copied[3], got[10]);
  EXPECT_EQ(copied[0], got[299]);
  EXPECT_EQ(copied[19], got[10]);
  EXPECT_EQ(std::accumulate(copied.begin(), copied.end(), 0), 2 * got[10] + got[299]);
}

}  // namespace
}  // namespace nibble::ops
