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
  EXPECT_EQ(typed_parameter(&f, "o", R"({"x": 1})"), R"({"x": 1})");
  EXPECT_EQ(typed_parameter(&f, "a", "[1, 2]"), "[1, 2]");
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

// A string that reads as something else is one where nothing else is allowed, as of
// Optional[str]; a value of another type is none where it is.
TEST(TypedParameterTest, HasATypeThatItMayHave) {
  const FunctionTool f = tool(R"({"s":{"type":"string"},"list":{"type":["string","null"]},
      "optional":{"anyOf":[{"type":"string"},{"type":"null"}]},
      "either":{"anyOf":[{"type":"string"},{"oneOf":[{"type":"integer"},{"type":"boolean"}]}]},
      "long":{"type":"integer"}})");
  for (const char* text : {"5", "true", "[1]", "{}", "word"}) {
    for (const char* name : {"s", "list", "optional"})
      EXPECT_EQ(typed_parameter(&f, name, text), '"' + std::string(text) + '"') << name;
  }
  EXPECT_EQ(typed_parameter(&f, "s", "null"), R"("null")");
  EXPECT_EQ(typed_parameter(&f, "list", "null"), "null");
  EXPECT_EQ(typed_parameter(&f, "optional", "null"), "null");
  EXPECT_EQ(typed_parameter(&f, "either", "5"), "5");
  EXPECT_EQ(typed_parameter(&f, "either", "True"), "true");
  EXPECT_EQ(typed_parameter(&f, "either", "[1]"), R"("[1]")");
  const std::string digits(40, '7');
  EXPECT_EQ(typed_parameter(&f, "long", digits + '\n'), digits);
}

// The grammar lets blanks stand around strings that are bound, and these end with none.
TEST(TypedParameterTest, TakesNoBlanksIntoABoundString) {
  const FunctionTool f = tool(R"({"p":{"type":"string","pattern":"^a+$"},
      "l":{"anyOf":[{"type":"string","maxLength":3},{"type":"null"}]},
      "e":{"enum":[" a "]},"s":{"type":"string"}})");
  EXPECT_EQ(typed_parameter(&f, "p", "\n aa\t"), R"("aa")");
  EXPECT_EQ(typed_parameter(&f, "l", " abc "), R"("abc")");
  EXPECT_EQ(typed_parameter(&f, "e", "\n a\n"), R"(" a ")");
  EXPECT_EQ(typed_parameter(&f, "s", " a "), R"(" a ")");
}

TEST(ParameterNameTest, IsOneThatTheFunctionHas) {
  const FunctionTool f = tool(R"({"<|a|>":{"type":"null"},"<|a|>b>":{"type":"null"}})");
  EXPECT_EQ(parameter_name_size(&f, "<|a|>>null"), 5u);
  EXPECT_EQ(parameter_name_size(&f, "<|a|>b>>null"), 7u);
  EXPECT_EQ(parameter_name_size(&f, "other>>"), 5u);
  EXPECT_EQ(parameter_name_size(&f, "other"), std::string::npos);
  EXPECT_EQ(parameter_name_size(nullptr, "<|a|>>"), 4u);
}

// Of parameters that the schema names elsewhere, or only describes.
TEST(TypedParameterTest, FindsWhatThePropertyIs) {
  const FunctionTool open = {.name = "f", .parameters = R"({"type":"object","properties":
      {"s":{"type":"string"}},"additionalProperties":{"type":"integer"}})"};
  EXPECT_EQ(typed_parameter(&open, "s", "5"), R"("5")");
  EXPECT_EQ(typed_parameter(&open, "other", "5"), "5");
  const FunctionTool pattern = {.name = "f", .parameters = R"({"type":"object",
      "patternProperties":{"^x":{"type":"array"}},"additionalProperties":false})"};
  EXPECT_EQ(typed_parameter(&pattern, "x1", "[1]"), "[1]");
  const FunctionTool either = {.name = "f", .parameters = R"({"anyOf":[{"$ref":"#/$defs/a"},
      {"type":"object","properties":{"b":{"type":"boolean"}}}],
      "$defs":{"a":{"type":"object","properties":{"a":{"type":"integer"}}}}})"};
  EXPECT_EQ(typed_parameter(&either, "a", "5"), "5");
  EXPECT_EQ(typed_parameter(&either, "b", "True"), "true");
}

TEST(TypedParameterTest, ChoosesAmongValuesOfAnyType) {
  const FunctionTool f = tool(R"({"e":{"enum":[1,"two",true,null]},"c":{"const":3}})");
  EXPECT_EQ(typed_parameter(&f, "e", "1"), "1");
  EXPECT_EQ(typed_parameter(&f, "e", "two"), R"("two")");
  EXPECT_EQ(typed_parameter(&f, "e", "true"), "true");
  EXPECT_EQ(typed_parameter(&f, "e", "2"), R"("2")");
  EXPECT_EQ(typed_parameter(&f, "c", "3"), "3");
  const FunctionTool g = tool(R"({"e":{"enum":[1000.0,{"k":[1,2]}]},"c":{"const":" a"}})");
  EXPECT_EQ(typed_parameter(&g, "e", "\n1000\n"), "1000.0");
  EXPECT_EQ(typed_parameter(&g, "e", R"({ "k": [1, 2] })"), R"({"k":[1,2]})");
  EXPECT_EQ(typed_parameter(&g, "c", "\na\n"), R"(" a")");
}

// As pydantic writes schemas.
TEST(TypedParameterTest, FollowsReferences) {
  const FunctionTool f =
      tool(R"({"p":{"$ref":"#/$defs/Point"},"k":{"allOf":[{"$ref":"#/$defs/Kind"}]},
               "loop":{"$ref":"#/$defs/Loop"},"gone":{"$ref":"#/$defs/None"}})",
           R"({"Point":{"type":"object"},"Kind":{"enum":[1,2]},"Loop":{"$ref":"#/$defs/Loop"}})");
  EXPECT_EQ(typed_parameter(&f, "p", R"({"x": 1})"), R"({"x": 1})");
  EXPECT_EQ(typed_parameter(&f, "k", "2"), "2");
  EXPECT_EQ(typed_parameter(&f, "loop", "2"), R"("2")");
  EXPECT_EQ(typed_parameter(&f, "gone", "2"), R"("2")");
}

}  // namespace
}  // namespace nibble
