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
