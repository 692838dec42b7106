#include "text/chat/tool_format.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

FunctionTool tool(const std::string& properties, const std::string& defs = "{}") {
  return {
      .name = "f",
      .parameters = R"({"type":"object","properties":)" + properties + R"(,"$defs":)" + defs + "}"};
}

TEST(TypedParameterTest, HasTheTypeOfItsSchema) {
  const FunctionTool f = tool(R"({"s":{"type":"string"},"i":{"type":"integer"},
      "n":{"type":"number"},"b":{"type":"boolean"},"o":{"type":"object"},"a":{"type":"array"},
      "any":{"anyOf":[{"type":"integer"},{"type":"null"}]}})");
  EXPECT_EQ(typed_parameter(&f, "s", " 1 "), R"(" 1 ")");
  EXPECT_EQ(typed_parameter(&f, "i", "1"), "1");
  EXPECT_EQ(typed_parameter(&f, "i", "one"), R"("one")");
  EXPECT_EQ(typed_parameter(&f, "n", "1.5"), "1.5");
  EXPECT_EQ(typed_parameter(&f, "o", R"({"x": 1})"), R"({"x":1})");
  EXPECT_EQ(typed_parameter(&f, "a", "[1, 2]"), "[1,2]");
  EXPECT_EQ(typed_parameter(&f, "any", "7"), "7");
  EXPECT_EQ(typed_parameter(&f, "any", "null"), "null");
  EXPECT_EQ(typed_parameter(&f, "unknown", "7"), R"("7")");
  EXPECT_EQ(typed_parameter(nullptr, "s", "7"), R"("7")");
}

// The grammar lets blanks stand around what is no string: "\n true" is true.
TEST(TypedParameterTest, TakesNoBlanksForPartOfAValue) {
  const FunctionTool f = tool(R"({"b":{"type":"boolean"},"i":{"type":"integer"},
      "e":{"enum":["add","subtract"]},"t":{"type":"string","enum":["add","subtract"]},
      "c":{"const":"add"}})");
  for (const char* blanks : {"", " ", "\n\n", "\t\r\n "}) {
    const auto value = [&](const char* name, const char* text) {
      return typed_parameter(&f, name, blanks + std::string(text) + blanks);
    };
    EXPECT_EQ(value("b", "true"), "true");
    EXPECT_EQ(value("b", "False"), "false");
    EXPECT_EQ(value("i", "12"), "12");
    EXPECT_EQ(value("i", "null"), "null");
    EXPECT_EQ(value("e", "add"), R"("add")");
    EXPECT_EQ(value("t", "subtract"), R"("subtract")");
    EXPECT_EQ(value("c", "add"), R"("add")");
  }
}

TEST(TypedParameterTest, ChoosesAmongValuesOfAnyType) {
  const FunctionTool f = tool(R"({"e":{"enum":[1,"two",true,null]},"c":{"const":3}})");
  EXPECT_EQ(typed_parameter(&f, "e", "1"), "1");
  EXPECT_EQ(typed_parameter(&f, "e", "two"), R"("two")");
  EXPECT_EQ(typed_parameter(&f, "e", "true"), "true");
  EXPECT_EQ(typed_parameter(&f, "e", "2"), R"("2")");
  EXPECT_EQ(typed_parameter(&f, "c", "3"), "3");
}

// As pydantic writes schemas.
TEST(TypedParameterTest, FollowsReferences) {
  const FunctionTool f =
      tool(R"({"p":{"$ref":"#/$defs/Point"},"k":{"allOf":[{"$ref":"#/$defs/Kind"}]},
               "loop":{"$ref":"#/$defs/Loop"},"gone":{"$ref":"#/$defs/None"}})",
           R"({"Point":{"type":"object"},"Kind":{"enum":[1,2]},"Loop":{"$ref":"#/$defs/Loop"}})");
  EXPECT_EQ(typed_parameter(&f, "p", R"({"x": 1})"), R"({"x":1})");
  EXPECT_EQ(typed_parameter(&f, "k", "2"), "2");
  EXPECT_EQ(typed_parameter(&f, "loop", "2"), R"("2")");
  EXPECT_EQ(typed_parameter(&f, "gone", "2"), R"("2")");
}

}  // namespace
}  // namespace nibble
