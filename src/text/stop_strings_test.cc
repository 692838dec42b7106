#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace nibble {
namespace {

struct Outcome {
  std::string shown;
  int matched;
  bool operator==(const Outcome&) const = default;
};

// The definition: of all occurrences, the one that ends first; of those, the longest.
Outcome by_definition(const std::vector<std::string>& stops, bool include,
                      const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool ends_here = !stops[i].empty() && text.substr(0, end).ends_with(stops[i]);
      if (ends_here && (best < 0 || stops[i].size() > stops[best].size()))
        best = static_cast<int>(i);
    }
    if (best >= 0) return {text.substr(0, include ? end : end - stops[best].size()), best};
  }
  return {text, -1};
}

TEST(StopStrings, HoldsBackWhatMightBecomeOne) {
  StopStrings s({"###", "\nUser:"});
  EXPECT_EQ(s.push("Hello #"), "Hello ");
  EXPECT_EQ(s.push("# not yet\nUs"), "## not yet");
  EXPECT_EQ(s.push("e"), "");
  EXPECT_EQ(s.push("d\nUser: hidden"), "\nUsed");
  EXPECT_TRUE(s.stopped());
  EXPECT_EQ(s.matched(), 1);
  EXPECT_EQ(s.push("more"), "");
  EXPECT_EQ(s.flush(), "");
}

TEST(StopStrings, FlushGivesBackWhatWasHeld) {
  StopStrings s({"abc"});
  EXPECT_EQ(s.push("xab"), "x");
  EXPECT_EQ(s.flush(), "ab");
  EXPECT_FALSE(s.stopped());
  EXPECT_EQ(s.matched(), -1);
  EXPECT_EQ(s.push("c"), "c");  // a new text
}

TEST(StopStrings, IncludedStopStringsAreShownAtOnce) {
  StopStrings s({"</end>"}, true);
  EXPECT_EQ(s.push("a</e"), "a</e");
  EXPECT_EQ(s.push("nd>b"), "nd>");
  EXPECT_TRUE(s.stopped());
}

TEST(StopStrings, OfSeveralThatEndTogetherTheLongestCounts) {
  StopStrings s({"d", "bcd", "cd"});
  EXPECT_EQ(s.push("abcde"), "a");
  EXPECT_EQ(s.matched(), 1);
}

TEST(StopStrings, WithoutStopStringsAllPasses) {
  EXPECT_TRUE(StopStrings().empty());
  EXPECT_TRUE(StopStrings({""}).empty());
  EXPECT_FALSE(StopStrings({"a"}).empty());
  for (const auto& stops : {std::vector<std::string>{}, std::vector<std::string>{"", ""}}) {
    StopStrings s(stops);
    EXPECT_EQ(s.push("text"), "text");
    EXPECT_FALSE(s.stopped());
  }
}

TEST(StopStrings, ACopyIsASnapshot) {
  StopStrings s({"abc"});
  s.push("ab");
  StopStrings snapshot = s;
  EXPECT_EQ(s.push("c"), "");
  EXPECT_TRUE(s.stopped());
  EXPECT_FALSE(snapshot.stopped());
  EXPECT_EQ(snapshot.push("d"), "abd");
}

// Over two letters, so that stop strings overlap each other and themselves, cut at random.
TEST(StopStrings, AgreesWithTheDefinitionHoweverTheTextIsCut) {
  std::mt19937 rng(7);
  const auto word = [&](size_t max) {
    std::string w(rng() % (max + 1), 'a');
    for (char& c : w) c = rng() % 2 ? 'a' : 'b';
    return w;
  };
  int stopped = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::string> stops(rng() % 4);
    for (auto& stop : stops) stop = word(6);
    const std::string text = word(24);
    const bool include = rng() % 2;
    StopStrings s(stops, include);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + rng() % 5;
      shown += s.push(text.substr(at, n));
      at += n;
    }
    shown += s.flush();
    const Outcome expected = by_definition(stops, include, text);
    EXPECT_EQ((Outcome{shown, s.matched()}), expected);
    stopped += s.stopped();
  }
  EXPECT_GT(stopped, 5000);
  EXPECT_LT(stopped, 19000);
}

}  // namespace
}  // namespace nibble
