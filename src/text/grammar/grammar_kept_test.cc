// What of schemas and patterns is kept to, and what is refused, or left out where that is allowed.
#include "text/grammar/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/grammar/grammar_for_test.h"

namespace nibble {
namespace {

TEST(Grammar, RefusesWhatIsNotValidOrWouldBeIgnored) {
  using Kind = GrammarSpec::Kind;
  const std::string long_pattern(1 << 20, 'a');
  const std::string nested = std::string(1'000, '(') + "a" + std::string(1'000, ')');
  std::string deep;
  for (int i = 0; i < 5'000; ++i) deep += R"({"type":"array","items":)";
  std::string wide = R"({"anyOf":[{"type":"null"})", values = R"({"enum":["v")";
  for (int i = 0; i < 2'000; ++i) {
    wide += R"(,{"const":)" + std::to_string(i) + "}";
    values += ',' + std::to_string(i);
  }
  const Form cases[] = {
      {Kind::kJsonSchema, wide + "]}"},
      {Kind::kJsonSchema, values + "]}"},
      {Kind::kRegex, "foo**"},
      {Kind::kRegex, "(a"},
      {Kind::kRegex, "a(?=b)"},
      {Kind::kRegex, "a(?!b)c"},
      {Kind::kRegex, "a(?<=b)c"},
      {Kind::kRegex, "[z-a]"},
      {Kind::kRegex, long_pattern},
      {Kind::kRegex, nested},
      {Kind::kRegex, R"(\x4)"},
      {Kind::kRegex, R"(\U00110000)"},
      {Kind::kRegex, R"([\UFFFFFFFF])"},
      {Kind::kRegex, R"(\u{110000})"},
      {Kind::kRegex, R"(\ud83d)"},
      {Kind::kRegex, R"([\u{DFFF}a])"},
      {Kind::kRegex, R"(\x4g)"},
      {Kind::kRegex, R"(\u004g)"},
      {Kind::kJsonSchema, "{"},
      {Kind::kJsonSchema, "5"},
      {Kind::kJsonSchema, R"({"type":"string"} x)"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"\\x22222222222222"})"
                          "\xff"},
      {Kind::kJsonSchema, R"({"type":"strin"})"},
      {Kind::kJsonSchema, R"({"type":"object","properties":5})"},
      {Kind::kJsonSchema, R"({"$ref":"https://example.com/schema.json"})"},
      {Kind::kJsonSchema, R"({"$ref":"#/$defs/none"})"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"(a"})"},
      {Kind::kJsonSchema, R"({"not":{"type":"string"}})"},
      {Kind::kJsonSchema, R"({"type":"integer","minimum":5,"maximum":1})"},
      {Kind::kJsonSchema, R"({"type":"integer","minimum":1e20})"},
      {Kind::kJsonSchema, deep},
      {Kind::kEbnf, "root ::= missing"},
      {Kind::kEbnf, "start ::= \"a\""},
      {Kind::kEbnf, "root ::= \"a"},
      {Kind::kEbnf, R"(root ::= "\x110000")"},
      {Kind::kEbnf, R"(root ::= "\x4141414141414141")"},
      {Kind::kEbnf, R"(root ::= [\UFFFFFFFF])"},
      {Kind::kEbnf, R"(root ::= "\uD83D")"},
      {Kind::kEbnf, R"(root ::= [\xdfff])"},
      {Kind::kEbnf, R"(root ::= "#" "\x110000")"},
      {Kind::kEbnf, R"(root ::= [\]#] "\x110000")"},
      {Kind::kEbnf, "# \"\nroot ::= \"\\x110000\""},
      {Kind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"grammar",)"
                             R"("grammar":"root ::= \"\\x4141414141\""}})"},
      {Kind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"grammar",)"
                             R"("grammar":"root ::= \"a\""}} x)"},
  };
  for (const Form& bad : cases) {
    const auto grammar = compile(bad.kind, bad.text);
    ASSERT_FALSE(grammar.ok()) << bad.text.substr(0, 200);
    EXPECT_LT(grammar.error().size(), 400u);
    EXPECT_THAT(grammar.error(), testing::Not(testing::HasSubstr("Check failed")));
    EXPECT_FALSE(compile(bad.kind, bad.text).ok()) << "the second time: " << bad.text;
  }
}

struct SchemaCase {
  std::string schema;
  std::vector<std::string> good, bad;
};

// What xgrammar, left to itself, does not look at.
TEST(Grammar, KeepsToAllOfASchema) {
  const std::string both = R"("properties":{"a":{"type":"integer"},"b":{"type":"integer"}},)"
                           R"("additionalProperties":false)";
  const SchemaCase cases[] = {
      {R"({"minLength":3})", {R"("abc")"}, {R"("ab")"}},
      {R"({"minimum":3,"type":["number","null"]})", {"4", "null"}, {"1"}},
      {R"({"maximum":3})", {"2"}, {"4"}},
      {R"({"required":["z"]})", {R"({"z":1})"}, {"{}", R"({"y":1})"}},
      {R"({"type":"object","required":["z"],"additionalProperties":{"type":"string"}})",
       {R"({"z":"s"})"},
       {R"({"z":1})", R"({"y":"s"})"}},
      {R"({"type":"object","properties":{"a":{}},"unevaluatedProperties":false})",
       {R"({"a":1})"},
       {R"({"b":1})"}},
      {R"({"type":"integer","enum":["a",1,2.5]})", {"1"}, {R"("a")", "2.5"}},
      {"{\"type\":\"object\"," + both + R"(,"anyOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
       {"{}", "5", R"({"a":"x"})", R"({"c":1})"}},
      {R"({"type":"string","anyOf":[{"minLength":3},{"pattern":"^x$"}]})",
       {R"("abc")", R"("x")"},
       {R"("a")", "5"}},
      {R"({"type":"object","$ref":"#/$defs/s","$defs":{"s":{"type":"object","required":["a"]}}})",
       {R"({"a":1})"},
       {"{}"}},
      {R"({"type":"object","patternProperties":{"^x[a-z]$":{"type":"integer"}},)"
       R"("properties":{"a":{"type":"string"}}})",
       {R"({"a":"s"})", R"({"a":"s","xb":1})"},
       {R"({"xb":"s"})", R"({"a":"s","a":1})"}},
      {R"({"type":"object","properties":{"a":{"const":1},"aé":{"const":2},"a\"":{"const":3}}})",
       {R"({"a":1})", R"({"aé":2})", R"({"a\"":3})", R"({"aè":5})", R"({"ab\u0061":5})",
        R"({"":5})"},
       {R"({"a":5})", R"({"aé":5})", R"({"\u0061":5})", R"({"a\u00e9":5})", R"({"\u0061é":5})",
        R"({"a\"":5})", R"({"a\u0022":5})", R"({"a"":5})"}},
      {R"({"propertyNames":{},"type":"object"})", {R"({"a":1})"}, {"{1:1}", "{null:1}"}},
      {R"({"enum":[9223372036854775807,-9223372036854775808,1e19,1e300]})",
       {"9223372036854775807", "-9223372036854775808", "1e+19", "1.0000000000000001e+300"},
       {"9223372036854775806", "-9223372036854775807", "1e+18"}},
      {R"({"type":"object","propertyNames":{"$ref":"#/$defs/n"},"$defs":{"n":{"pattern":"^a+$"}}})",
       {R"({"aa":1})", "{}"},
       {R"({"b":1})", "{1:1}"}},
      {R"({"type":"object","propertyNames":{"$ref":"#/$defs/n"},)"
       R"("$defs":{"n":{"anyOf":[{"$ref":"#/$defs/m"},{"const":"b"}]},"m":{"maxLength":1}}})",
       {R"({"a":1})"},
       {R"({"ab":1})", "{1:1}"}},
      {R"({"propertyNames":{"anyOf":[{"maxLength":2},{"const":"xyz"}]},"type":"object"})",
       {R"({"ab":1})", R"({"xyz":1})"},
       {R"({"abc":1})", "{1:1}"}},
      {R"({"type":"object","propertyNames":{"maxLength":2},"additionalProperties":false})",
       {"{}"},
       {R"({"a":1})"}},
      {R"({"type":"string","pattern":"^b+$","format":"uri"})", {R"("bb")"}, {R"("a:b")"}},
      {R"({"type":"string"})", {R"("\ud83d\uDE00\u00e9")"}, {R"("\ud83d")", R"("\ude00")"}},
      {R"({"type":"number"})", {"1e99", "-2.5E-9"}, {"1e400", "1e"}},
      {R"({"type":"string","pattern":"^é[^a]$"})", {R"("éb")"}, {R"("éa")", "\"é\"\""}},
      {R"({"type":"string","pattern":"^\\x41222222222222$"})", {R"("A222222222222")"}, {R"("A")"}},
      {R"({"type":"string","pattern":"^[0-9]+(-[a-z]+)?$"})", {R"("1-a")"}, {R"("1a")"}},
      {R"({"type":"string","format":"date"})",
       {R"("2024-02-29")", R"("2023-12-31")"},
       {R"("2023-02-29")", R"("2023-04-31")", R"("0000-01-01")"}},
      {R"({"type":"string","format":"date-time"})",
       {R"("2024-02-29T12:00:00.5Z")"},
       {R"("2023-02-30T12:00:00Z")", R"("2023-02-20T12:00:60Z")", R"("2024-02-29T12:00:005Z")"}},
      {R"({"type":"string","format":"ipv4"})", {R"("10.0.0.255")"}, {R"("10.0.0.01")"}},
      {R"({"type":"string","format":"ipv6"})",
       {R"("::")", R"("::1")", R"("fe80::")", R"("1:2:3:4:5:6:7:8")", R"("::2:3:4:5:6:7:8")",
        R"("1:2:3:4:5:6:7::")", R"("1::3:4:5:6:7:8")", R"("1:2:3:4:5:6:10.0.0.1")",
        R"("::ffff:10.0.0.255")", R"("1:2:3::10.0.0.1")"},
       {R"("")", R"("1")", R"("1:2:3:4:5:6:7")", R"("1:2:3:4:5:6:7:8:9")", R"("1::2::3")",
        R"("1:2:3:4:5:6:7:8::")", R"("::10.0.0.01")", R"("c9ad:353::181.75.131.03")",
        R"("1:2:3:4:5:6:7:10.0.0.1")", R"("12345::")"}},
      {R"({"type":"string","pattern":"^[^]a]b[]c]$"})",
       {R"("xb]")", R"("xbc")"},
       {R"("]b]")", R"("abc")", R"("xba")"}},
      {R"({"type":"string","pattern":"^[[]a]$"})", {R"("[a]")"}, {R"("a]")", R"("[]a]")"}},
      {R"({"type":"string","pattern":"^[^[x][][][a[-]+$"})",
       {R"("b[a")", R"("y]-")", R"("][[-a")"},
       {R"("[[a")", R"("x[a")", R"("bxa")", R"("b[x")"}},
      {R"({"type":"string","pattern":"^[[:alpha:]]$"})",
       {R"("[]")", R"(":]")", R"("h]")"},
       {R"("b]")", R"("a")", R"("[")"}},
  };
  for (const SchemaCase& one : cases) {
    const auto grammar = compile(GrammarSpec::Kind::kJsonSchema, one.schema);
    ASSERT_TRUE(grammar.ok()) << one.schema << ": " << grammar.error();
    for (const std::string& text : one.good)
      EXPECT_TRUE(matches(*grammar, text)) << one.schema << text;
    for (const std::string& text : one.bad)
      EXPECT_FALSE(matches(*grammar, text)) << one.schema << text;
  }
}

TEST(Grammar, RefusesWhatItWouldNotKeepTo) {
  for (const std::string schema :
       {R"({"$ref":"#/$defs/s","minLength":3,"$defs":{"s":{"type":"string"}}})",
        R"({"allOf":[{"type":"integer"}],"maximum":9})",
        R"({"anyOf":[{"type":"string"},{"type":"null"}],"maxLength":3})",
        R"({"enum":[1,2],"minimum":2})",
        R"({"enum":[12345678901234567890]})",
        R"({"const":{"a":[-12345678901234567890]}})",
        R"({"enum":[9223372036854775808]})",
        R"({"enum":[123456789012345678901234567890]})",
        R"({"type":"object","propertyNames":{"$ref":"#/$defs/n"},"$defs":{"n":{"minimum":1}}})",
        R"({"type":"object","propertyNames":{"$ref":"#/examples/0"},)"
        R"("examples":[{"minLength":1}]})",
        R"({"type":"string","pattern":"\\x22222222222222"})",
        R"({"type":"string","pattern":"^\\x22222222222222$"})",
        R"({"type":"string","pattern":"\\UFFFFFFFF"})",
        R"({"type":"string","pattern":"^\\ud83d$"})",
        R"({"type":"object","propertyNames":{"enum":["a",1]}})",
        R"({"const":5,"type":"string"})",
        R"({"oneOf":[{"const":1}],"anyOf":[{"const":2}]})",
        R"({"type":"object","required":["z"],"additionalProperties":false})",
        R"({"type":"object","minProperties":2})",
        R"({"type":"object","properties":{"abc":{}},"propertyNames":{"maxLength":2}})",
        R"({"type":"object","properties":{"abc":{}},"propertyNames":{"maxLength":2},)"
        R"("additionalProperties":false})",
        R"({"type":"object","properties":{"xa":{}},"patternProperties":{"^x":{}}})",
        R"({"type":"object","properties":{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa":{}},)"
        R"("patternProperties":{"^(a+)+$":{}}})",
        R"({"type":"object","properties":{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!":{}},)"
        R"("patternProperties":{"^(a+)+$":{}}})",  // who knows: it takes too many steps
        R"({"type":"object","patternProperties":{"x":{},"y":{}}})",
        R"({"type":"string","pattern":"^\"$"})",
        R"({"type":"string","pattern":"^\\n$"})",
        R"({"type":[]})",
        R"({"properties":{"a":{"type":"array","minItems":1},)"
        R"("b":{"type":"number","multipleOf":0.5}}})",
        R"({"properties":{"a":{"type":"object","minProperties":1},)"
        R"("b":{"type":"number","multipleOf":0.5}}})",
        R"({"$dynamicRef":"#x"})"}) {
    const auto grammar = compile(GrammarSpec::Kind::kJsonSchema, schema);
    EXPECT_FALSE(grammar.ok()) << schema;
  }
}

TEST(Grammar, LeavesOutPatternsThatAreNoJson) {
  const auto grammar = compiler().compile({.kind = GrammarSpec::Kind::kJsonSchema,
                                           .text = R"({"type":"string","pattern":"^\"$"})",
                                           .lenient = true});
  ASSERT_TRUE(grammar.ok()) << grammar.error();
  EXPECT_FALSE(matches(*grammar, "\"\"\""));
  EXPECT_TRUE(matches(*grammar, R"("\"")"));
}

TEST(Grammar, LeavesOutWhatItCannotKeepToWhereThatIsAllowed) {
  GrammarSpec spec{.kind = GrammarSpec::Kind::kJsonSchema,
                   .text = R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})"};
  EXPECT_FALSE(compiler().compile(spec).ok());
  spec.lenient = true;
  const auto grammar = compiler().compile(spec);
  ASSERT_TRUE(grammar.ok()) << grammar.error();
  EXPECT_TRUE(matches(*grammar, "[1, 1]"));
  EXPECT_FALSE(matches(*grammar, "[true]"));
  // A property or a value may be called like a keyword.
  EXPECT_TRUE(compile(GrammarSpec::Kind::kJsonSchema,
                      R"({"type":"object","properties":{"not":{"enum":[{"if":1}]}}})")
                  .ok());
}

}  // namespace
}  // namespace nibble
