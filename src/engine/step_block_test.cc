#include "engine/step_block.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble {
namespace {

// On GPUs the ranks behind the first run a copy: all that a step says has to be in it.
TEST(StepBlock, ACopyIsTheWholeStep) {
  const std::vector<int32_t> tokens = {7, 8, 9}, positions = {0, 1, 5}, out_rows = {1, 2};
  const std::vector<Span> spans = {{0, 2, 0, 1}, {2, 1, 5, 0}};
  const Step step{.num_tokens = 3,
                  .num_spans = 2,
                  .num_out = 2,
                  .max_context = 128,
                  .all_rows = true,
                  .tokens = tokens.data(),
                  .positions = positions.data(),
                  .spans = spans.data(),
                  .out_rows = out_rows.data()};
  const StepLimits limits{.max_tokens = 4, .max_out = 4};
  StepBlock block(limits, Buffer(StepBlock::bytes(limits, 2)), 1);
  block.copy(step, {});
  const Step got = block.step();
  EXPECT_EQ(block.turn(), 1);
  EXPECT_TRUE(block.draws().empty());
  EXPECT_EQ(got.num_spans, 2);
  EXPECT_EQ(got.max_context, 128);
  EXPECT_TRUE(got.all_rows);
  EXPECT_NE(got.tokens, step.tokens);
  EXPECT_EQ(std::vector(got.tokens, got.tokens + got.num_tokens), tokens);
  EXPECT_EQ(std::vector(got.positions, got.positions + got.num_tokens), positions);
  EXPECT_EQ(got.spans[1].context, 5);
  EXPECT_EQ(std::vector(got.out_rows, got.out_rows + got.num_out), out_rows);
}

}  // namespace
}  // namespace nibble
