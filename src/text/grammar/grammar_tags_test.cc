// Schemas, patterns and grammars as parts of structural tags.
#include "text/grammar/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "text/grammar/grammar_for_test.h"

namespace nibble {
namespace {

// A strict tool of a template's format is inside a structural tag.
TEST(Grammar, KeepsToSchemasInTags) {
  const auto tag = [](const std::string& schema) {
    return R"({"type":"structural_tag","format":{"type":"json_schema","json_schema":)" + schema +
           "}}";
  };
  const auto grammar = compile(GrammarSpec::Kind::kStructuralTag, tag(R"({"required":["z"]})"));
  ASSERT_TRUE(grammar.ok()) << grammar.error();
  EXPECT_TRUE(matches(*grammar, R"({"z":1})"));
  EXPECT_FALSE(matches(*grammar, "{}"));
  // In a tag xgrammar takes arrays and objects as closed, where nothing is said of others.
  for (const auto& [schema, good, bad] :
       {std::array{R"({"type":["array","null"],"minItems":1})", "[5]", "[]"},
        std::array{R"({"type":"array","prefixItems":[{"const":1}],"minItems":2})", "[1,2]", "[1]"},
        std::array{R"({"minProperties":1})", R"({"a":5})", "{}"},
        std::array{R"({"properties":{"a":{"const":1}},"required":["a"],"minProperties":2})",
                   R"({"a":1,"b":2})", R"({"a":1})"}}) {
    for (const auto& open : {compile(GrammarSpec::Kind::kStructuralTag, tag(schema)),
                             compile(GrammarSpec::Kind::kJsonSchema, schema)}) {
      ASSERT_TRUE(open.ok()) << schema << ": " << open.error();
      EXPECT_TRUE(matches(*open, good)) << schema;
      EXPECT_FALSE(matches(*open, bad)) << schema;
    }
  }
  // Still closed, where what it describes is enough.
  for (const auto& [schema, good, bad] :
       {std::array{R"({"type":"array","prefixItems":[{"const":1}],"minItems":1})", "[1]", "[1,2]"},
        std::array{R"({"properties":{"a":{}},"minProperties":1})", R"({"a":1})", R"({"b":1})"}}) {
    const auto closed = compile(GrammarSpec::Kind::kStructuralTag, tag(schema));
    ASSERT_TRUE(closed.ok()) << schema << ": " << closed.error();
    EXPECT_TRUE(matches(*closed, good)) << schema;
    EXPECT_FALSE(matches(*closed, bad)) << schema;
  }
  for (const char* schema :
       {R"({"allOf":[{"type":"integer"}],"maximum":9})", R"({"items":{"not":{"const":1}}})"}) {
    EXPECT_FALSE(compile(GrammarSpec::Kind::kStructuralTag, tag(schema)).ok()) << schema;
  }
}

// Where line ends stand as they are.
TEST(Grammar, DotsTakeNoLineEndsInParameters) {
  const nlohmann::json schema = {
      {"type", "object"},
      {"properties", {{"p", {{"type", "string"}, {"pattern", "^a.c$"}}}}},
      {"required", {"p"}},
      {"additionalProperties", false}};
  const nlohmann::json format = {{"type", "qwen_xml_parameter"},
                                 {"json_schema", schema},
                                 {"max_whitespace_cnt", 20},
                                 {"excludes", {"</parameter>"}}};
  const auto grammar =
      compile(GrammarSpec::Kind::kStructuralTag,
              nlohmann::json{{"type", "structural_tag"}, {"format", format}}.dump());
  ASSERT_TRUE(grammar.ok()) << grammar.error();
  EXPECT_TRUE(matches(*grammar, "<parameter=p>\nabc\n</parameter>"));
  EXPECT_FALSE(matches(*grammar, "<parameter=p>\na\nc\n</parameter>"));
  EXPECT_FALSE(matches(*grammar, "<parameter=p>\na\rc\n</parameter>"));
}

// A tag of two parts, either of which a text may be.
Result<Grammar> compile_either(const nlohmann::json& one, const nlohmann::json& other) {
  const nlohmann::json format = {{"type", "or"}, {"elements", {one, other}}};
  return compile(GrammarSpec::Kind::kStructuralTag,
                 nlohmann::json{{"type", "structural_tag"}, {"format", format}}.dump());
}

// A strict answer is held to its form beside lenient tools, and these may be lenient beside it:
// what is found in schemas, and what xgrammar only warns of.
TEST(Grammar, EachPartOfATagIsAsStrictAsItSays) {
  const nlohmann::json good = {{"type", "json_schema"}, {"json_schema", {{"type", "boolean"}}}};
  for (const std::string schema :
       {R"({"type":"number","multipleOf":0.5})", R"({"$ref":"https://example.com/s.json"})",
        R"({"type":"string","pattern":"^a$","maxLength":3})", R"({"not":{"const":1}})",
        R"({"type":"string","pattern":"^a(?=b)$"})"}) {
    nlohmann::json part = {{"type", "json_schema"}, {"json_schema", nlohmann::json::parse(schema)}};
    EXPECT_FALSE(compile_either(good, part).ok()) << schema;
    for (const bool lenient : {false, true}) {
      part["lenient"] = lenient;
      part["function"] = "f";
      for (const bool other : {false, true}) {
        nlohmann::json beside = good;
        beside["lenient"] = other;
        for (const auto& grammar : {compile_either(part, beside), compile_either(beside, part)}) {
          ASSERT_EQ(grammar.ok(), lenient) << schema;
          EXPECT_EQ(lenient, lenient && matches(*grammar, "true"));
          if (lenient) continue;
          EXPECT_THAT(grammar.error(), testing::HasSubstr("(in the function 'f')"));
        }
      }
    }
  }
  const nlohmann::json lenient = {
      {"type", "json_schema"}, {"json_schema", {{"type", "boolean"}}}, {"lenient", true}};
  const nlohmann::json regex = {{"type", "regex"}, {"pattern", "a(?=b)"}};
  EXPECT_FALSE(compile_either(lenient, regex).ok());
}

// At once, as outside of tags: thousands of alternatives would take minutes.
TEST(Grammar, NoPartOfATagIsTooWide) {
  nlohmann::json wide = {{"type", "json_schema"}, {"json_schema", {{"anyOf", {true}}}}};
  for (int i = 0; i < 2'000; ++i) wide["json_schema"]["anyOf"].push_back({{"const", i}});
  for (const bool lenient : {false, true}) {
    wide["lenient"] = lenient;
    const auto grammar =
        compile_either({{"type", "json_schema"}, {"json_schema", {{"type", "null"}}}}, wide);
    ASSERT_FALSE(grammar.ok());
    EXPECT_THAT(grammar.error(), testing::HasSubstr("has 2001 values in one \"anyOf\""));
  }
}

}  // namespace
}  // namespace nibble
