#include "ops/sample/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace nibble::ops {
namespace {

TEST(Sample, TwinByHand) {
  // Rows: logits of 1, 1/2, 1/4, 1/4 over 2; two equal; one that is not a number.
  std::vector<float> rows = {
      0, -std::log(2.0f), -std::log(4.0f), -std::log(4.0f), 1, 3, 3, 2, 0, 1, 2, NAN};
  const Tensor logits = make_tensor(rows.data(), DType::kF32, {3, 4});
  Ctx cx;
  std::vector<Greedy> got(6);
  std::vector<int32_t> ids(3);
  const int32_t turn = 0, next_turn = 1;
  const GreedyOut out{got.data(), 3, &turn};
  sample_greedy(cx, out, logits, nullptr);
  EXPECT_EQ(got[0].id, 0);
  EXPECT_NEAR(got[0].logprob, -std::log(2.0), 1e-6);
  EXPECT_EQ(got[1].id, 1);  // the lower of equals
  EXPECT_EQ(got[2].id, Greedy::kNotFinite);

  uint32_t never = 1;  // not id 0: the next best, of the same distribution
  sample_greedy(cx, out, logits, &never);
  EXPECT_EQ(got[0].id, 1);
  EXPECT_NEAR(got[0].logprob, -2 * std::log(2.0), 1e-6);
  never = 15;
  sample_greedy(cx, out, logits, &never);
  EXPECT_EQ(got[0].id, Greedy::kNone);
  EXPECT_EQ(got[2].id, Greedy::kNotFinite);

  sample_greedy(cx, {got.data(), 3, &next_turn, ids.data()}, logits, nullptr);
  EXPECT_EQ(got[0].id, Greedy::kNone);
  EXPECT_EQ(got[3].id, 0);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 0}));
}

}  // namespace
}  // namespace nibble::ops
