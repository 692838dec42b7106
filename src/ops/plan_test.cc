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
const char* refuse_all(const Problem&, const KernelOptions&) { return "on another machine"; }
const char* refuse_nothing(const Problem&, const KernelOptions&) { return nullptr; }

TEST(SitePlan, ChoosesByTheSizeOfTheStep) {
  constexpr Row kRows[] = {{"few", refuse_many, nothing}, {"many", refuse_nothing, nothing}};
  const SitePlan plan({Op::kMoeUp, 1}, std::span<const Row>(kRows), Problem{}, {});
  for (const int64_t tokens : {1, 3, 16}) EXPECT_STREQ(plan.row<Row>(tokens).name, "few") << tokens;
  for (const int64_t tokens : {17, 513, 100000})
    EXPECT_STREQ(plan.row<Row>(tokens).name, "many") << tokens;

  ASSERT_EQ(plan.entries().size(), 2u);
  EXPECT_EQ(plan.entries()[0].min_tokens, 1);
  EXPECT_EQ(plan.entries()[0].max_tokens, 16);
  EXPECT_EQ(plan.entries()[1].min_tokens, 17);
  EXPECT_EQ(plan.entries()[1].refused, (std::vector<Refusal>{{"few", "up to 16 tokens"}}));
}

// One resident layout: a kernel for few tokens is taken only if one for many reads what it reads.
TEST(SitePlan, ReadsOneLayoutInStepsOfEverySize) {
  constexpr Row kFewTiles{"few_tiles", refuse_many, nothing, Layout::kTiles16x64};
  constexpr Row kAllTiles{"all_tiles", refuse_nothing, nothing, Layout::kTiles16x64};
  constexpr Row kAllRows{"all_rows", refuse_nothing, nothing};
  const Row both[] = {kFewTiles, kAllRows, kAllTiles};
  SitePlan plan({Op::kMoeUp, 0}, std::span<const Row>(both), Problem{}, {});
  EXPECT_EQ(plan.layout(), Layout::kTiles16x64);
  EXPECT_STREQ(plan.row<Row>(3).name, "few_tiles");
  EXPECT_STREQ(plan.row<Row>(17).name, "all_tiles");

  // What reads it last does not win for a row that stands first and never runs.
  constexpr Row kElsewhere{"elsewhere", refuse_all, nothing};
  const Row general[] = {kElsewhere, kFewTiles, kAllTiles, kAllRows};
  plan = SitePlan({Op::kMoeUp, 0}, std::span<const Row>(general), Problem{}, {});
  EXPECT_EQ(plan.layout(), Layout::kTiles16x64);
  EXPECT_STREQ(plan.row<Row>(17).name, "all_tiles");

  const Row one[] = {kFewTiles, kAllRows};
  plan = SitePlan({Op::kMoeUp, 0}, std::span<const Row>(one), Problem{}, {});
  EXPECT_EQ(plan.layout(), Layout::kRows);
  EXPECT_STREQ(plan.row<Row>(3).name, "all_rows");
  EXPECT_EQ(plan.entries()[0].refused[0].reason,
            "no kernel for other sizes of step reads its layout of the weights");
  EXPECT_EQ(plan.entries().back().refused[0].reason, "up to 16 tokens");
}

TEST(SitePlan, NamesWhatWouldBeResidentTwice) {
  const SiteKey site{Op::kMoeUp, 3};
  const PlanEntry few{site, 1, 64, "few", {}, "mxfp4 in tiles16x64"};
  const PlanEntry many{site, 65, 512, "many", {}, "mxfp4 in tiles16x64"};
  PlanEntry copy = many;
  copy.weights = "mxfp4 in rows";
  PlanEntry other_layer = copy;
  other_layer.site.layer = 4;
  EXPECT_TRUE(resident_twice({few, many, other_layer}).empty());
  EXPECT_EQ(resident_twice({few, copy}),
            (std::vector<std::string>{"moe_up.3: mxfp4 in tiles16x64, and mxfp4 in rows"}));
}

TEST(SitePlan, ThrowsWhereASizeHasNoKernel) {
  constexpr Row kRows[] = {{"few", refuse_many, nothing}};
  try {
    SitePlan({Op::kMoeUp, 0}, std::span<const Row>(kRows), Problem{}, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "no kernel for moe_up:\n  few: up to 16 tokens");
  }
}

TEST(SitePlan, KeepsTheLayoutThatWeightsLieIn) {
  const Row rows[] = {{"tiles", refuse_nothing, nothing, Layout::kTiles16x64},
                      {"rows", refuse_nothing, nothing}};
  const SitePlan plan({Op::kMoeUp, 0}, std::span<const Row>(rows), Problem{}, {}, Layout::kRows);
  EXPECT_EQ(plan.layout(), Layout::kRows);
  EXPECT_STREQ(plan.row<Row>(1).name, "rows");
}

TEST(SitePlan, NamesSites) {
  EXPECT_EQ(site_label({Op::kMoeUp, 3}), "moe_up.3");
  EXPECT_EQ(site_label({Op::kOutProj, 0, "second"}), "out_proj/second.0");
  EXPECT_EQ(site_label({Op::kEmbed}), "embed");
}

}  // namespace
}  // namespace nibble::ops
