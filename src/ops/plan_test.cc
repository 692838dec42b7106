#include "ops/plan.h"

#include <gtest/gtest.h>

namespace nibble::ops {
namespace {

struct Problem {
  int64_t tokens = 1;
};
using Row = Kernel<Problem, void()>;
void nothing() {}

const char* refuse_many(const Problem& p, const KernelOptions&) {
  return p.tokens > 16 ? "up to 16 tokens" : nullptr;
}
const char* refuse_nothing(const Problem&, const KernelOptions&) { return nullptr; }

TEST(KernelPlan, ChoosesByTheSizeOfTheStep) {
  constexpr Row kRows[] = {{"few", refuse_many, nothing}, {"many", refuse_nothing, nothing}};
  KernelPlan plan(2);
  plan.add(Op::kMoeUp, 1, std::span<const Row>(kRows), Problem{}, {});
  for (const int64_t tokens : {1, 3, 16})
    EXPECT_STREQ(plan.row<Row>(Op::kMoeUp, 1, tokens).name, "few") << tokens;
  for (const int64_t tokens : {17, 513, 100000})
    EXPECT_STREQ(plan.row<Row>(Op::kMoeUp, 1, tokens).name, "many") << tokens;

  ASSERT_EQ(plan.entries().size(), 2u);
  EXPECT_EQ(plan.entries()[0].min_tokens, 1);
  EXPECT_EQ(plan.entries()[0].max_tokens, 16);
  EXPECT_EQ(plan.entries()[1].min_tokens, 17);
  EXPECT_EQ(plan.entries()[1].refused, (std::vector<Refusal>{{"few", "up to 16 tokens"}}));
}

TEST(KernelPlanDeathTest, ARowWithoutAKernelCannotRun) {
  constexpr Row kRows[] = {{"elsewhere", refuse_nothing, nullptr}};
  KernelPlan plan(1);
  plan.add(Op::kEmbed, -1, std::span<const Row>(kRows), Problem{}, {});
  EXPECT_EQ(plan.entries()[0].kernel, "elsewhere");
  EXPECT_DEATH(plan.row<Row>(Op::kEmbed, -1, 1), "CHECK");
}

}  // namespace
}  // namespace nibble::ops
