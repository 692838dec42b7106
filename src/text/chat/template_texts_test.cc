#include "text/chat/template_texts.h"

#include <gtest/gtest.h>

#include <utility>

namespace jinja {
namespace {

// Python's repr().
TEST(TemplateTexts, Numbers) {
  for (const auto& [value, text] : {std::pair{0.5, "0.5"},
                                    {-3.0, "-3.0"},
                                    {0.0, "0.0"},
                                    {-0.0, "-0.0"},
                                    {48.8566969, "48.8566969"},
                                    {123456789.125, "123456789.125"},
                                    {1e15, "1000000000000000.0"},
                                    {1e16, "1e+16"},
                                    {123456789012345678.0, "1.2345678901234568e+17"},
                                    {0.0001, "0.0001"},
                                    {1e-5, "1e-05"},
                                    {2.5e-7, "2.5e-07"},
                                    {1e300, "1e+300"},
                                    {0.1 + 0.2, "0.30000000000000004"},
                                    {5e-324, "5e-324"}})
    EXPECT_EQ(number_text(value), text);
}

TEST(TemplateTexts, SpacesOfUnicode) {
  const std::string_view text = "\u3000 a\u00a0";
  EXPECT_EQ(space_at(text, 0), 3u);
  EXPECT_EQ(space_at(text, 3), 1u);
  EXPECT_EQ(space_at(text, 4), 0u);
  EXPECT_EQ(space_before(text, text.size()), 2u);
  EXPECT_EQ(space_before(text, 5), 0u);
  EXPECT_EQ(space_before(text, 3), 3u);
  EXPECT_EQ(space_at(text, text.size()), 0u);
  EXPECT_EQ(space_before(text, 0), 0u);
  for (const char* other : {"\u200b", "\u00e0", "\ufeff", "\xa0"}) {  // the last is no UTF-8
    EXPECT_EQ(space_at(other, 0), 0u);
    EXPECT_EQ(space_before(other, std::string_view(other).size()), 0u);
  }
}

}  // namespace
}  // namespace jinja
