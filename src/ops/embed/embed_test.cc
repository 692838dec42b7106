#include "ops/embed/embed.h"

#include <gtest/gtest.h>

#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

// Every value of a table is a float32 value: rows equal the twin's bits, and a step starts with
// nothing pending.
void check(Format format, int64_t vocab, int64_t hidden, int64_t tokens) {
  Random random(static_cast<uint32_t>(tokens));
  const TestWeight table(random, format, 1, vocab, hidden, /*has_bias=*/false);
  const Rope rope = make_rope(8, 10000, std::nullopt);
  std::vector<int32_t> ids, positions;
  for (int64_t t = 0; t < tokens; ++t) {
    ids.push_back(static_cast<int32_t>(random.below(vocab)));
    positions.push_back(static_cast<int32_t>(random.below(1000)));
  }
  const Step step{.num_tokens = static_cast<int32_t>(tokens),
                  .tokens = ids.data(),
                  .positions = positions.data()};
  const EmbedDesc desc{vocab, hidden, format};
  TestCtx test(DType::kF32, 0);
  Floats want_x(tokens, hidden), want_d(tokens, hidden), want_angles(tokens, 8);
  ref::embed(test.cx, {want_x.tensor(), want_d.tensor(), want_angles.tensor()}, table.view, rope,
             step);
  for (const EmbedKernel* row : kernels_here(embed_kernels(), desc)) {
    Floats x(tokens, hidden), d(random, tokens, hidden), angles(tokens, 8);
    row->run(test.cx, {x.tensor(), d.tensor(), angles.tensor()}, table.view, rope, step);
    EXPECT_EQ(x.values, want_x.values) << row->name;
    EXPECT_EQ(d.values, std::vector<float>(tokens * hidden, 0)) << row->name;
    EXPECT_EQ(angles.values, want_angles.values) << row->name;
  }
}

TEST(Embed, EveryKernelEqualsTheTwin) {
  for (const Format format : {Format::kBF16, Format::kMxfp4})
    for (const int64_t tokens : {1, 7}) check(format, 33, 96, tokens);
}

}  // namespace
}  // namespace nibble::ops
