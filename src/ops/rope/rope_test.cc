#include "ops/rope/rope.h"

#include <gtest/gtest.h>

#include "ops/test_problem.h"

namespace nibble::ops {
namespace {

YarnParams gpt_oss_yarn() {
  YarnParams yarn;
  yarn.factor = 32, yarn.original_max_position = 4096, yarn.truncate = false;
  return yarn;
}

// Values of facts worked out from the formulas of gpt-oss's reference, in double.
TEST(Rope, GptOssFrequencies) {
  const Rope rope = make_rope(64, 150000, gpt_oss_yarn());
  const float want[32] = {1.0,
                          6.890443059e-1,
                          4.747820555e-1,
                          3.271458719e-1,
                          2.254180003e-1,
                          1.553229895e-1,
                          1.070244215e-1,
                          7.374456821e-2,
                          5.081327482e-2,
                          3.170569618e-2,
                          1.933500113e-2,
                          1.159204926e-2,
                          6.794959490e-3,
                          3.860359317e-3,
                          2.093792379e-3,
                          1.052602101e-3,
                          4.564839192e-4,
                          1.293187012e-4,
                          3.830881237e-5,
                          2.639646903e-5,
                          1.818833668e-5,
                          1.253256982e-5,
                          8.635495875e-6,
                          5.950239261e-6,
                          4.099978482e-6,
                          2.825066827e-6,
                          1.946596211e-6,
                          1.341291035e-6,
                          9.242089502e-7,
                          6.368209146e-7,
                          4.387978250e-7,
                          3.023511428e-7};
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(rope.inv_freq[i], want[i], want[i] * 1.2e-7) << i;
  EXPECT_NEAR(rope.concentration, 1.3465735902799727, 1e-15);
}

// Of Llama 3.1 (theta 5e5, heads of 128), as transformers 5.23 makes them in float32: kept up to
// pair 28, mixed up to 34, an eighth from 35 on.
TEST(Rope, Llama3Frequencies) {
  const Rope rope = make_llama3_rope(128, 5e5, {});
  const std::pair<int, double> want[] = {
      {0, 1},
      {1, .8146172339},
      {28, 3.211445995e-3},
      {29, 2.166570764e-3},
      {30, 1.371893568e-3},
      {31, 8.567514129e-4},
      {32, 5.248461610e-4},
      {33, 3.126937504e-4},
      {34, 1.785078128e-4},
      {35, 9.556212354e-5},
      {63, 3.068925989e-7},
  };
  // Half a dozen roundings there, one here.
  for (const auto& [i, f] : want) EXPECT_NEAR(rope.inv_freq[i], f, f * 7 * 0x1p-24) << i;
  EXPECT_EQ(rope.concentration, 1);
}

TEST(Rope, TruncationChangesIndices9To17Only) {
  YarnParams truncated = gpt_oss_yarn();
  truncated.truncate = true;
  const Rope exact = make_rope(64, 150000, gpt_oss_yarn()), rope = make_rope(64, 150000, truncated);
  const double ratio[] = {.99732,  1.00600, 1.01727, 1.03249, 1.05419,
                          1.08763, 1.14586, 1.27266, 1.76268};
  for (int i = 0; i < 32; ++i) {
    const double want = i >= 9 && i <= 17 ? ratio[i - 9] : 1;
    EXPECT_NEAR(rope.inv_freq[i] / exact.inv_freq[i], want, 6e-6) << i;
  }
}

TEST(Rope, AnglesOfGptOss) {
  const Rope rope = make_rope(64, 150000, gpt_oss_yarn());
  const struct {
    int32_t position, i;
    double cos, sin;
  } cases[] = {{1, 0, 0.7275568, 1.1331026},
               {100, 9, -1.3460083, -0.0390142},
               {4096, 13, -1.3392883, -0.1398831},
               {131071, 17, -0.4348546, -1.2744261},
               {131071, 31, 1.3455163, 0.0533500}};
  TestCtx test(DType::kF32, 0);
  for (const auto& c : cases) {
    Floats cos_sin(1, 64);
    rope_angles(test.cx, cos_sin.tensor(), rope, Step{.num_tokens = 1, .positions = &c.position});
    // The angle is rounded to float32: up to 17 here, so 1e-6, times the concentration.
    EXPECT_NEAR(cos_sin.at(0, c.i), c.cos, 2e-6) << c.position;
    EXPECT_NEAR(cos_sin.at(0, 32 + c.i), c.sin, 2e-6) << c.position;
  }
}

TEST(Rope, PlainAndGivenAttentionFactor) {
  const Rope plain = make_rope(8, 10000, std::nullopt);
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(plain.inv_freq[i], std::pow(10, -i), std::pow(10, -i) * 1e-7);
  EXPECT_EQ(plain.concentration, 1);
  YarnParams yarn = gpt_oss_yarn();
  yarn.attention_factor = 1.25;
  EXPECT_EQ(make_rope(64, 150000, yarn).concentration, 1.25);
}

}  // namespace
}  // namespace nibble::ops
