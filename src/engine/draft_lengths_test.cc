// How many drafts are worth verifying.
#include "engine/draft_lengths.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

namespace nibble {
namespace {

// Steps of n tokens take first + more * (n - 1).
StepTimes times_of(double first, double more, int32_t most) {
  StepTimes times;
  for (int32_t n = 1; n <= most; ++n) {
    for (int32_t i = 0; i < 3; ++i) times.add(n, first + more * (n - 1));
  }
  return times;
}

double time_of(const StepTimes& times, int32_t tokens) {
  double seconds = -1;
  times.of(tokens, {&seconds, 1});
  return seconds;
}

// With `num_drafts` drafts that come true so often, all places alike.
std::unique_ptr<Sequence> sequence_of(int32_t num_drafts, bool comes_true) {
  auto sequence = std::make_unique<Sequence>(Request{.prompt = {1}, .max_tokens = 8}, 1);
  sequence->drafts.assign(num_drafts, 0);
  sequence->draft_rates().emplace();
  for (int32_t i = 0; i < num_drafts; ++i) {
    for (int32_t n = 0; n < 60; ++n) sequence->draft_rates()->learn(i, comes_true);
  }
  return sequence;
}

int32_t wanted(const StepTimes& times, int32_t num_drafts, bool comes_true) {
  const auto sequence = sequence_of(num_drafts, comes_true);
  Sequence* const one = sequence.get();
  DraftLengths().choose({&one, 1}, 100, times, {});
  return sequence->num_wanted;
}

TEST(DraftLengths, NoneThatNeverComeTrue) { EXPECT_EQ(wanted(times_of(1, 0.01, 8), 5, false), 0); }

TEST(DraftLengths, AllThatComeTrueWhereTheyCostLess) {
  EXPECT_EQ(wanted(times_of(1, 0.3, 8), 5, true), 5);
  EXPECT_EQ(wanted(times_of(1, 1.1, 8), 5, true), 0);  // each costs more than a step of its own
}

TEST(DraftLengths, NoneBeforeAStepWasTimed) { EXPECT_EQ(wanted(StepTimes(), 5, true), 0); }

TEST(DraftLengths, SizesNotSeenAreTried) { EXPECT_EQ(wanted(times_of(1, 9, 1), 5, true), 5); }

TEST(DraftLengths, TheBestOfASequencesDrafts) {
  // Tokens 1 + .5 + .25 + ... over 1, 1.2, 1.4: 1.25, 1.25, 1.17 a second; of equals the fewer.
  const auto sequence = std::make_unique<Sequence>(Request{.prompt = {1}, .max_tokens = 8}, 1);
  sequence->drafts.assign(4, 0);
  sequence->draft_rates().emplace();
  Sequence* const one = sequence.get();
  DraftLengths().choose({&one, 1}, 100, times_of(1, 0.2, 8), {});
  EXPECT_EQ(sequence->num_wanted, 1);
}

TEST(DraftLengths, ThoseOfOneSequenceBeforeAnothers) {
  const auto good = sequence_of(3, true), bad = sequence_of(3, false);
  Sequence* both[] = {bad.get(), good.get()};
  DraftLengths().choose(both, 100, times_of(1, 0.2, 8), {});
  EXPECT_EQ(good->num_wanted, 3);
  EXPECT_EQ(bad->num_wanted, 0);
  DraftLengths().choose(both, 2, times_of(1, 0.2, 8), {});
  EXPECT_EQ(good->num_wanted, 2);
}

// Bad luck with a place that is not tried any more, while those before it come true.
TEST(DraftRates, WhatIsNotSeenBecomesLikeThePlaceBefore) {
  DraftRates rates;
  for (int32_t n = 0; n < 60; ++n) rates.learn(0, true), rates.learn(1, false);
  EXPECT_LT(rates.rate(1), 0.01);
  for (int32_t n = 0; n < 30; ++n) rates.forget(1);
  EXPECT_NEAR(rates.rate(1), 1 - std::pow(0.99, 30), 0.01);
  EXPECT_LT(rates.rate(2), rates.rate(1) + 0.5);
  for (int32_t n = 0; n < 1000; ++n) rates.forget(1);
  EXPECT_GT(rates.rate(1), 0.99);
  EXPECT_GT(rates.rate(6), 0.9);
  for (int32_t n = 0; n < 60; ++n) rates.learn(0, false), rates.forget(0);
  EXPECT_LT(rates.rate(0), 0.01);  // it has none before it
}

// What makes drafts takes its time, too, by the longest chain.
TEST(DraftLengths, NoneWhereMakingThemTakesLonger) {
  const auto wanted_of = [](const DraftTimes& draft_times) {
    const auto sequence = sequence_of(5, true);
    Sequence* const one = sequence.get();
    DraftLengths().choose({&one, 1}, 100, times_of(1, 0.1, 8), draft_times);
    return sequence->num_wanted;
  };
  DraftTimes cheap, dear;
  for (int32_t i = 0; i < 3; ++i) cheap.add(1, 0.1), dear.add(1, 1.5);
  EXPECT_EQ(wanted_of(cheap), 5);
  EXPECT_EQ(wanted_of(dear), 0);  // n + 1 tokens in 1 + 1.6 n
  EXPECT_EQ(wanted_of({}), 5);    // not seen yet: tried
}

TEST(DraftTimes, OfAChainNotSeenIsThatOfAShorterOneInProportion) {
  DraftTimes times;
  EXPECT_EQ(times.of(3), 0);
  times.add(2, 100);  // the first does not count
  EXPECT_EQ(times.of(2), 0);
  times.add(2, 4);
  EXPECT_NEAR(times.of(2), 4, 1e-9);
  EXPECT_NEAR(times.of(3), 6, 1e-9);
  EXPECT_EQ(times.of(1), 0);
}

TEST(StepTimes, FirstOfASizeDoesNotCount) {
  StepTimes times;
  times.add(4, 100);
  EXPECT_EQ(time_of(times, 4), 0);
  times.add(4, 1);
  EXPECT_NEAR(time_of(times, 4), 1, 1e-9);
  times.add(4, 1000);  // as if it took two
  EXPECT_NEAR(time_of(times, 4), 1.1, 0.01);
}

// A machine with other work: the second step of a size took ten times as long.
TEST(StepTimes, TheLeastOfTheFirstCounts) {
  StepTimes times;
  times.add(4, 2), times.add(4, 10), times.add(4, 1);
  EXPECT_NEAR(time_of(times, 4), 1, 1e-9);
}

// The text has become longer, or the machine slower: what was learnt of other sizes follows.
TEST(StepTimes, AllSizesKeepPace) {
  StepTimes times = times_of(1, 1, 3);
  for (int32_t i = 0; i < 100; ++i) times.add(1, 4);
  EXPECT_NEAR(time_of(times, 1), 4, 0.1);
  EXPECT_GT(time_of(times, 3) / std::exp(-100.0 / 300), 3 * 2.5);
  for (int32_t i = 0; i < 200; ++i) times.add(1, 1);
  EXPECT_NEAR(time_of(times, 1), 1, 0.1);
  EXPECT_LT(time_of(times, 3), 3.3);
}

// Bad luck, or a colder machine: a size that was seen twice is tried again after hundreds of steps,
// not thousands; one that is well known after thousands.
TEST(StepTimes, WhatIsHardlyKnownIsTriedSooner) {
  StepTimes times = times_of(1, 0, 1);
  for (int32_t i = 0; i < 3; ++i) times.add(2, 4);
  for (int32_t i = 0; i < 300; ++i) times.add(8, 4);
  for (int32_t i = 0; i < 500; ++i) times.add(1, 1);
  EXPECT_LT(time_of(times, 2), 1.01);
  EXPECT_GT(time_of(times, 8), 3.7);
}

TEST(StepTimes, StraightLinesBetweenSizes) {
  const StepTimes times = times_of(1, 0, 1);
  StepTimes two = times;
  for (int32_t i = 0; i < 3; ++i) two.add(5, 3);
  EXPECT_NEAR(time_of(two, 3), 2, 1e-2);
  EXPECT_NEAR(time_of(two, 50), 3, 1e-2);
}

TEST(StepTimes, WhatWasNotSeenForLongIsHopedToTakeLess) {
  StepTimes times = times_of(1, 2, 2);
  EXPECT_NEAR(time_of(times, 2), 3, 1e-2);
  for (int32_t i = 0; i < 20'000; ++i) times.add(1, 1);
  EXPECT_LT(time_of(times, 2), 1.01);
}

}  // namespace
}  // namespace nibble
