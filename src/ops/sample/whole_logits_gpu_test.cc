// Where a rank's columns are put among those of all ranks, as the loops below do: alone, for others
// to read beside theirs, or among zeros, so that the sum over the ranks (NCCL's) is the whole.
#include "ops/sample/whole_logits.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/gpu_test_problem.h"

namespace nibble::ops {
namespace {

struct Shape {
  int64_t rows;
  VocabCut cut;
};

// The first columns, the last, some between, one, all, none; more values than one round of threads.
constexpr Shape kShapes[] = {{1, {200, 0, 48}}, {3, {200, 61, 139}}, {5, {61, 7, 31}},
                             {2, {9, 4, 1}},    {4, {130, 0, 130}},  {3, {130, 130, 0}},
                             {7, {130, 60, 0}}, {64, {201, 67, 67}}, {9, {40001, 13333, 13334}}};

void check(decltype(gpu::place_columns)* place, bool among_zeros) {
  for (const auto& [rows, cut] : kShapes) {
    if (is_too_slow(rows * cut.vocab)) continue;
    Random random(static_cast<uint32_t>(rows + cut.begin));
    const Floats mine(random, rows, cut.size);
    std::vector<float> want(rows * cut.vocab, among_zeros ? 0.0f : -7.0f);
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(mine.row(r), cut.size, want.begin() + r * cut.vocab + cut.begin);
    GpuProblem gpu;
    auto* const room = const_cast<float*>(gpu.array(std::vector<float>(want.size(), -7)));
    place(gpu.cx, room, gpu.tensor(mine, DType::kF32), cut);
    EXPECT_EQ(gpu.values<float>(room, std::ssize(want)), want)
        << rows << " rows, columns " << cut.begin << " to " << cut.begin + cut.size << " of "
        << cut.vocab;
  }
}

TEST(WholeLogitsGpu, ColumnsLieBesideThoseOfOthers) {
  check(gpu::place_columns, /*among_zeros=*/false);
}
TEST(WholeLogitsGpu, ColumnsLieAmongZeros) { check(gpu::place_among_zeros, /*among_zeros=*/true); }

}  // namespace
}  // namespace nibble::ops
