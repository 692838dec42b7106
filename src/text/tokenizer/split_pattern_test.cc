#include "text/tokenizer/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> matches(std::string_view regex, std::string_view text) {
  const SplitPattern pattern(regex, "field");
  MatchSpace space;
  std::vector<std::string> out;
  size_t begin = 0, end = 0;
  for (size_t from = 0; from < text.size() && pattern.find(text, from, space, begin, end);) {
    out.emplace_back(text.substr(begin, end - begin));
    from = end > begin ? end : end + 1;
  }
  return out;
}

std::string error_of(std::string_view regex) {
  try {
    const SplitPattern pattern(regex, "field");
  } catch (const Error& e) {
    return e.what();
  }
  return "(accepted)";
}

TEST(SplitPattern, WhiteSpaceIsUnicodesAndNotPcres) {
  // U+180E is no white space since Unicode 6.3; U+0085, U+00A0 and U+3000 are.
  EXPECT_THAT(matches("\\s+",
                      "a\xE1\xA0\x8E"
                      "b\xC2\x85\xC2\xA0\xE3\x80\x80"
                      "c"),
              ElementsAre("\xC2\x85\xC2\xA0\xE3\x80\x80"));
  EXPECT_THAT(matches("[^\\s]+", " \xE1\xA0\x8E\t"), ElementsAre("\xE1\xA0\x8E"));
  EXPECT_THAT(matches("\\S+", "\xC2\xA0x y"), ElementsAre("x", "y"));
}

TEST(SplitPattern, CaseFoldsAsUnicodeSays) {
  EXPECT_THAT(matches("(?i:'s|'ll)", "'S '\xC5\xBF 'Ll"), ElementsAre("'S", "'\xC5\xBF", "'Ll"));
}

TEST(SplitPattern, KnowsPropertiesScriptsAndEscapes) {
  EXPECT_THAT(matches("\\p{Han}+", "a\xE6\xBC\xA2\xE5\xAD\x97z"),
              ElementsAre("\xE6\xBC\xA2\xE5\xAD\x97"));
  EXPECT_THAT(matches("\\p{^L}+", "ab12c"), ElementsAre("12"));
  EXPECT_THAT(matches("[\\u0061-\\x{63}]+", "abcd"), ElementsAre("abc"));
  EXPECT_THAT(matches("\\d+", "1\xD9\xA3x"), ElementsAre("1\xD9\xA3"));
  EXPECT_THAT(matches("[\\]\\-a]+", "]-ab"), ElementsAre("]-a"));
  EXPECT_THAT(matches("a{2,3}", "aaaaa"), ElementsAre("aaa", "aa"));
}

TEST(SplitPattern, RefusesWhatMightMeanSomethingElse) {
  for (const char* regex :
       {"\\w",     "\\b",   "\\h",   "\\v",     "\\R",   "\\K",   "\\1",     "\\x41",
        "\\u12",   "\\",    "\\C",   "\\pL",    "\\p{L", "^a",    "a$",      "[a[b]]",
        "[a&&b]",  "[]a]",  "[^]a]", "(?<n>a)", "(?i)a", "(?#c)", "(*UTF)a", "a{,3}",
        "a{1,2}+", "a{2}?", "a{x",   "[a",      "(a",    "a)",    "a**",     "\\p{NoSuchScript}"}) {
    EXPECT_THAT(error_of(regex), HasSubstr("field: ")) << regex;
  }
  EXPECT_THAT(error_of(std::string(70'000, 'a')), HasSubstr("field: "));
}

TEST(SplitPattern, GivesUpOnExponentialCostWithoutLoss) {
  const SplitPattern pattern("(?:a|aa|a)+b", "field");
  MatchSpace space;
  size_t begin = 0, end = 0;
  EXPECT_FALSE(pattern.find(std::string(200, 'a'), 0, space, begin, end));
  EXPECT_TRUE(pattern.find("xaab", 0, space, begin, end));  // and works on
  EXPECT_EQ(begin, 1u);
}

TEST(SplitPattern, LongMatchesNeedNoStack) {
  // The alternatives in the group keep a frame per turn: far more than the JIT's stack.
  const std::string text(1'200'000, 'a');
  const SplitPattern pattern("(?:a|b)+", "field");
  MatchSpace space;
  size_t begin = 0, end = 0;
  ASSERT_TRUE(pattern.find(text, 0, space, begin, end));
  EXPECT_EQ(end, text.size());
}

}  // namespace
}  // namespace nibble
