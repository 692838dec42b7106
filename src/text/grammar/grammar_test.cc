// What grammars let through, id by id, what is refused, and that bad input is refused in bounded
// time.
#include "text/grammar/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "text/chat/harmony_for_test.h"

namespace nibble {
namespace {

constexpr int32_t kReturn = 256;  // in byte_tokenizer()
constexpr int32_t kVocab = 270;   // a few columns of the logits have no token

const GrammarCompiler& compiler() {
  static const GrammarCompiler compiler(byte_tokenizer(), kVocab);
  return compiler;
}

Result<Grammar> compile(GrammarSpec::Kind kind, const std::string& text) {
  return compiler().compile({.kind = kind, .text = text});
}

std::vector<uint32_t> mask_of(GrammarRun& run) {
  std::vector<uint32_t> bits((kVocab + 31) / 32, ~uint32_t{0});
  run.mask(bits);
  return bits;
}

bool has(const std::vector<uint32_t>& bits, int32_t id) {
  return bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
}

struct Form {
  GrammarSpec::Kind kind;
  std::string text;
};

// Whether the whole text is of the grammar: every byte is allowed by mask and accept() alike, and
// the end id is allowed behind the last.
bool matches(const Grammar& grammar, const std::string& text) {
  GrammarRun run(grammar, {kReturn});
  for (const char c : text) {
    const int32_t id = static_cast<unsigned char>(c);
    const bool allowed = has(mask_of(run), id);
    EXPECT_EQ(run.accept(id), allowed) << text;
    if (!allowed) return false;
  }
  return has(mask_of(run), kReturn);
}

TEST(Grammar, JsonObjects) {
  const auto grammar = compiler().compile({.kind = GrammarSpec::Kind::kJsonObject});
  ASSERT_TRUE(grammar.ok()) << grammar.error();
  EXPECT_TRUE(matches(*grammar, R"({"a": [1, true, null, "\u00e9"], "b": {"c": -1.5e3}})"));
  EXPECT_TRUE(matches(*grammar, "{}"));
  EXPECT_FALSE(matches(*grammar, "[]"));
  EXPECT_FALSE(matches(*grammar, R"({"a": 01})"));
  EXPECT_FALSE(matches(*grammar, R"({"a": 1)"));
}

TEST(Grammar, Schemas) {
  const auto grammar = compile(GrammarSpec::Kind::kJsonSchema, R"({
    "type": "object", "required": ["city", "days"], "additionalProperties": false,
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7},
                   "unit": {"enum": ["C", "F"]}}})");
  ASSERT_TRUE(grammar.ok()) << grammar.error();
  EXPECT_TRUE(matches(*grammar, R"({"city": "Paris", "days": 3})"));
  EXPECT_TRUE(matches(*grammar, R"({"city": "Paris", "days": 7, "unit": "C"})"));
  EXPECT_FALSE(matches(*grammar, R"({"city": "Paris", "days": 8})"));
  EXPECT_FALSE(matches(*grammar, R"({"city": "Paris"})"));
  EXPECT_FALSE(matches(*grammar, R"({"city": "Paris", "days": 3, "unit": "K"})"));
  EXPECT_FALSE(matches(*grammar, R"({"city": 5, "days": 3})"));
}

TEST(Grammar, RecursiveSchema) {
  const auto grammar = compile(GrammarSpec::Kind::kJsonSchema, R"({"$ref": "#/$defs/node", "$defs":
    {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}},
     "additionalProperties": false}}})");
  ASSERT_TRUE(grammar.ok()) << grammar.error();
  EXPECT_TRUE(matches(*grammar, R"({"next": {"next": {}}})"));
  EXPECT_FALSE(matches(*grammar, R"({"next": 1})"));
}

TEST(Grammar, RegexChoiceAndEbnf) {
  const auto regex = compile(GrammarSpec::Kind::kRegex, R"([0-9]{3}-(foo|bar)+)");
  ASSERT_TRUE(regex.ok()) << regex.error();
  EXPECT_TRUE(matches(*regex, "123-foobar"));
  EXPECT_FALSE(matches(*regex, "12-foo"));
  const auto choice = compiler().compile(
      {.kind = GrammarSpec::Kind::kChoice, .choices = {"yes", "no", "say \"no\"\n\\", "é"}});
  ASSERT_TRUE(choice.ok()) << choice.error();
  for (const char* text : {"yes", "no", "say \"no\"\n\\", "é"}) EXPECT_TRUE(matches(*choice, text));
  EXPECT_FALSE(matches(*choice, "maybe"));
  const auto ebnf = compile(GrammarSpec::Kind::kEbnf, "root ::= \"a\" root \"b\" | \"\"");
  ASSERT_TRUE(ebnf.ok()) << ebnf.error();
  EXPECT_TRUE(matches(*ebnf, "aabb"));
  EXPECT_FALSE(matches(*ebnf, "aab"));
}

TEST(Grammar, GoesBack) {
  const auto grammar = compile(GrammarSpec::Kind::kRegex, "ab|ac|[0-9]+");
  ASSERT_TRUE(grammar.ok());
  GrammarRun run(*grammar, {kReturn});
  EXPECT_TRUE(run.accept('a'));
  EXPECT_TRUE(run.accept('b'));
  EXPECT_FALSE(run.accept('b'));
  run.rollback_to(1);
  EXPECT_EQ(run.num_accepted(), 1u);
  EXPECT_TRUE(run.accept('c'));
  EXPECT_TRUE(run.accept(kReturn));
  EXPECT_FALSE(run.accept('7'));
  run.rollback_to(0);
  EXPECT_TRUE(run.accept('7'));
}

// Inside strings most tokens are allowed: no special token is among them, and no column of the
// logits without a token. At its end the text has the ends of the run, and no other.
TEST(Grammar, SpecialTokensOnlyEndIt) {
  const int32_t call = *byte_tokenizer().find_special("<|call|>");
  const auto specials_of = [](GrammarRun& run) {
    std::vector<int32_t> ids;
    const auto bits = mask_of(run);
    for (int32_t id = 256; id < kVocab; ++id) {
      if (has(bits, id)) ids.push_back(id);
    }
    return ids;
  };
  for (const Form& form :
       {Form{GrammarSpec::Kind::kJsonSchema, R"({"type":"string"})"},
        Form{GrammarSpec::Kind::kJsonObject, ""},
        Form{GrammarSpec::Kind::kRegex, R"("[^"]*"|\{"[^"]*":1\})"},
        Form{GrammarSpec::Kind::kEbnf, R"(root ::= "{"? "\"" [^"]* "\"" [^"]*)"}}) {
    const auto grammar = compile(form.kind, form.text);
    ASSERT_TRUE(grammar.ok()) << grammar.error();
    for (const std::vector<int32_t>& ends :
         {std::vector{kReturn}, std::vector{call}, std::vector{call, kReturn}}) {
      GrammarRun run(*grammar, ends);
      const bool object = has(mask_of(run), '{') && !has(mask_of(run), '"');
      const std::string text = object ? "{\"word\":1}" : "\"word\"";
      for (const char c : text) {
        EXPECT_THAT(specials_of(run), testing::IsEmpty()) << form.text;
        for (int32_t id = 256; id < kVocab; ++id) EXPECT_FALSE(run.accept(id)) << form.text;
        ASSERT_TRUE(run.accept(static_cast<unsigned char>(c))) << form.text;
      }
      EXPECT_THAT(specials_of(run), testing::UnorderedElementsAreArray(ends)) << form.text;
    }
  }
}

// A text that the masks let through, byte by byte at random. "" where it becomes long.
std::string random_text(const Grammar& grammar, uint32_t seed) {
  std::mt19937 random(seed);
  GrammarRun run(grammar, {kReturn});
  Detokenizer detokenizer(byte_tokenizer());
  std::string text;
  while (text.size() < 2'000) {
    const auto bits = mask_of(run);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < kVocab; ++id) {
      if (has(bits, id)) allowed.push_back(id);
    }
    EXPECT_FALSE(allowed.empty()) << text;
    if (allowed.empty()) return "";
    int32_t id = allowed[random() % allowed.size()];
    if (has(bits, '"') && random() % 4 == 0) id = '"';  // or strings would never end
    if (has(bits, '@') && random() % 4 == 0) id = '@';
    if (has(bits, kReturn)) id = kReturn;
    EXPECT_TRUE(run.accept(id)) << text;
    if (id == kReturn) return text + detokenizer.flush();
    text += detokenizer.push(id);
  }
  return "";
}

// Else one character of a schema could be three for its reader, who puts U+FFFD in place of bytes.
TEST(Grammar, CharactersAreUtf8) {
  for (const std::string schema :
       {R"({"type":"string"})", R"({"type":"string","minLength":1,"maxLength":1})",
        R"({"type":"string","pattern":"^.$"})", R"({"type":"string","pattern":"^[^a]+$"})"}) {
    const auto grammar = compile(GrammarSpec::Kind::kJsonSchema, schema);
    ASSERT_TRUE(grammar.ok()) << grammar.error();
    for (const char* good :
         {"\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"}) {
      EXPECT_TRUE(matches(*grammar, '"' + std::string(good) + '"')) << schema << good;
    }
    for (const char* bad :
         {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xed\xbf\xbf",
          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xc3"}) {
      EXPECT_FALSE(matches(*grammar, '"' + std::string(bad) + '"')) << schema;
    }
  }
}

// Judged by another library.
TEST(Grammar, WhatASchemaLetsThroughIsJson) {
  for (
      const std::string schema :
      {R"({"type":"string"})", R"({"type":"string","minLength":2})",
       R"({"type":"string","minLength":1,"maxLength":9})",
       R"({"type":"string","pattern":"^.{1,9}$"})", R"({"type":"string","format":"email"})",
       R"({"type":"string","format":"json-pointer"})",
       R"({"type":"string","format":"relative-json-pointer"})",
       R"({"type":"string","format":"uri"})", R"({"type":"string","format":"uri-template"})",
       R"({"type":"string","format":"date-time"})",
       R"({"type":"object","additionalProperties":{"type":"string","maxLength":3},"maxProperties":2})",
       R"({"type":"object","properties":{"a \"b\"":{},"a\\":{},"\u0001":{}}})",
       R"({"type":"object","propertyNames":{"maxLength":3},"maxProperties":2})",
       R"({"type":"array","items":{"type":"number"},"maxItems":3})",
       R"({"enum":["\u0001","a\tb","\\"]})"}) {
    for (const auto& grammar :
         {compile(GrammarSpec::Kind::kJsonSchema, schema),
          compile(GrammarSpec::Kind::kStructuralTag,
                  R"({"type":"structural_tag","format":{"type":"json_schema","json_schema":)" +
                      schema + "}}")}) {
      ASSERT_TRUE(grammar.ok()) << schema << ": " << grammar.error();
      int num_ended = 0;
      for (uint32_t seed = 0; seed < 100; ++seed) {
        const std::string text = random_text(*grammar, seed);
        num_ended += !text.empty();
        EXPECT_TRUE(text.empty() || nlohmann::json::accept(text)) << schema << ": " << text;
      }
      EXPECT_GT(num_ended, 20) << schema;
    }
  }
}

TEST(Grammar, FormatsThatBecomePatterns) {
  const auto grammar = compile(
      GrammarSpec::Kind::kJsonSchema,
      R"({"type":"array","items":{"type":"string","format":"email"},"minItems":1,"maxItems":1})");
  ASSERT_TRUE(grammar.ok()) << grammar.error();
  EXPECT_TRUE(matches(*grammar, R"(["jane.d+x@mail.example.org"])"));
  EXPECT_FALSE(matches(*grammar, R"(["jane@"])"));
  EXPECT_FALSE(matches(*grammar, R"(["jane"])"));
  const auto pointer =
      compile(GrammarSpec::Kind::kJsonSchema, R"({"type":"string","format":"json-pointer"})");
  ASSERT_TRUE(pointer.ok()) << pointer.error();
  EXPECT_TRUE(matches(*pointer, R"("/a/~0b//")"));
  EXPECT_FALSE(matches(*pointer, R"("a")"));
  // Neither a property's name nor a value is a keyword.
  const auto named = compile(
      GrammarSpec::Kind::kJsonSchema,
      R"({"type":"object","properties":{"format":{"const":{"format":"email"}}},"required":["format"]})");
  ASSERT_TRUE(named.ok()) << named.error();
  EXPECT_TRUE(matches(*named, R"({"format": {"format":"email"}})"));
}

TEST(Grammar, HostNamesHaveLabelsOfAtMost63) {
  const std::string longest(63, 'a');
  for (const std::string before : {"", "jane@"}) {
    const auto grammar = compile(GrammarSpec::Kind::kJsonSchema,
                                 std::string(R"({"type":"string","format":")") +
                                     (before.empty() ? "hostname" : "email") + "\"}");
    ASSERT_TRUE(grammar.ok()) << grammar.error();
    for (const auto& host : std::vector<std::string>{longest, longest + "." + longest, "a-b.org"}) {
      EXPECT_TRUE(matches(*grammar, '"' + before + host + '"')) << host;
    }
    for (const auto& host :
         std::vector<std::string>{longest + "a", "a." + longest + "a", "a-", "-a", "a..b", "a."}) {
      EXPECT_FALSE(matches(*grammar, '"' + before + host + '"')) << host;
    }
  }
}

// As Python's re.fullmatch() finds.
TEST(Grammar, ReadsPatternsAsOthersDo) {
  struct Pattern {
    std::string text;
    std::vector<std::string> fit, others;
  };
  const std::vector<Pattern> patterns = {
      {"a.c", {"abc", "a\rc", "aéc", "a.c"}, {"a\nc", "ac"}},
      {"(?s)a.c", {"abc", "a\nc"}, {"ac"}},
      {R"(a\.[.]\\.)", {"a..\\b"}, {"ab.\\b", "a.b\\b", "a..\\\n"}},
      {R"([^.]*)", {"", "a\n"}, {"."}},
      {R"([\^a])", {"^", "a"}, {"b", ""}},
      {R"([\^])", {"^"}, {"a"}},
      {R"([\^^a])", {"^", "a"}, {"b"}},
      {R"([\^\^a])", {"^", "a"}, {"b"}},
      {R"([\^\x5e])", {"^"}, {"a"}},
      {R"(x[\^]{2}[a\^])", {"x^^^", "x^^a"}, {"x^^b", "x^a"}},
      {R"([\^\]a]+b)", {"^]ab", "ab"}, {"b", "c"}},
      {R"([\x5Ea][\u005e])", {"^^", "a^"}, {"b^", "^a"}},
      {R"([\^-b])", {"^", "_", "a", "b"}, {"-", "c", "]"}},
      {R"([\^-])", {"^", "-"}, {"a", "_"}},
      {R"([\^.]?)", {"^", ".", ""}, {"a"}},
      {R"([^\^])", {"a", "\n"}, {"^"}},
      {R"(\[\^a])", {"[^a]"}, {"^", "a"}},
      {R"(\x41B\x5E5)", {"AB^5"}, {"\u041b^5", "AB\u05e5"}},
      {R"(\x5e5555555555)", {"^5555555555"}, {"5555555555"}},
      {R"(\u00411\U000000411\u{41}1)", {"A1A1A1"}, {"AAA"}},
      {R"([\x01-\x1fA])", {"\x01", "\n", "\x1f", "A"}, {"\u01fa", "B"}},
      {R"([\u00e9a\xe8b\u{e7}c])", {"é", "è", "ç", "a", "b", "c"}, {"\u0e9a", "d"}},
      {R"([^\x0a\x0d\x5d\x2d\x5c]+)", {"ab ", "0"}, {"\n", "\r", "]", "-", "\\"}},
      {R"([a\x2dc]\x2e\x5b\x22\012)", {"-.[\"\n", "a.[\"\n"}, {"b.[\"\n", "aa[\"\n"}},
      {R"(\\x41)", {R"(\x41)"}, {R"(\A)", "A"}},
  };
  for (const Pattern& pattern : patterns) {
    const nlohmann::json tag = {{"type", "structural_tag"},
                                {"format", {{"type", "regex"}, {"pattern", pattern.text}}}};
    for (const auto& grammar : {compile(GrammarSpec::Kind::kRegex, pattern.text),
                                compile(GrammarSpec::Kind::kStructuralTag, tag.dump())}) {
      ASSERT_TRUE(grammar.ok()) << pattern.text << ": " << grammar.error();
      for (const std::string& text : pattern.fit) {
        EXPECT_TRUE(matches(*grammar, text)) << pattern.text << " " << text;
      }
      for (const std::string& text : pattern.others) {
        EXPECT_FALSE(matches(*grammar, text)) << pattern.text << " " << text;
      }
    }
  }
}

// Of any length behind \x: a literal's next character may be no digit.
TEST(Grammar, RulesNumberCharacters) {
  const auto grammar = compile(GrammarSpec::Kind::kEbnf,
                               "# \\x110000 \" [\n"
                               R"(root ::= "\x41g" [\x10FFFF\U0001F600] "\\x11223344")"
                               " # \\uD83D");
  ASSERT_TRUE(grammar.ok()) << grammar.error();
  EXPECT_TRUE(matches(*grammar, "Ag\U0001F600\\x11223344"));
}

TEST(Grammar, LeavesNothingWhereNothingFits) {
  const auto grammar = compile(GrammarSpec::Kind::kRegex, "ab");
  ASSERT_TRUE(grammar.ok()) << grammar.error();
  GrammarRun run(*grammar, {kReturn});
  for (const int32_t id : {int32_t{'a'}, int32_t{'b'}, kReturn}) ASSERT_TRUE(run.accept(id));
  EXPECT_THAT(mask_of(run), testing::Each(0u));
}

// As long as the text that is repeated; xgrammar unrolls up to 128.
TEST(Grammar, RepeatsOfMoreThan128) {
  const std::string letters(200, 'x');
  const auto check = [&](const Result<Grammar>& grammar, const std::string& quote) {
    ASSERT_TRUE(grammar.ok()) << grammar.error();
    EXPECT_TRUE(matches(*grammar, quote + letters.substr(0, 130) + quote));
    EXPECT_TRUE(matches(*grammar, quote + letters + quote));
    EXPECT_FALSE(matches(*grammar, quote + letters.substr(0, 129) + quote));
    EXPECT_FALSE(matches(*grammar, quote + letters + "x" + quote));
  };
  check(compile(GrammarSpec::Kind::kRegex, "[w-z]{130,200}"), "");
  check(
      compile(GrammarSpec::Kind::kJsonSchema, R"({"type":"string","pattern":"^[w-z]{130,200}$"})"),
      "\"");
  const auto inside = compile(
      GrammarSpec::Kind::kJsonSchema,
      R"({"type":"object","properties":{"a":{"type":"string","pattern":"^(ab){150}$"}},"required":["a"]})");
  ASSERT_TRUE(inside.ok()) << inside.error();
  std::string pairs;
  for (int i = 0; i < 149; ++i) pairs += "ab";
  EXPECT_FALSE(matches(*inside, "{\"a\": \"" + pairs + "\"}"));
  EXPECT_TRUE(matches(*inside, "{\"a\": \"" + pairs + "ab\"}"));
}

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
      {Kind::kJsonSchema, R"({"type":"strin"})"},
      {Kind::kJsonSchema, R"({"type":"object","properties":5})"},
      {Kind::kJsonSchema, R"({"$ref":"https://example.com/schema.json"})"},
      {Kind::kJsonSchema, R"({"$ref":"#/$defs/none"})"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"(a"})"},
      {Kind::kJsonSchema, R"({"not":{"type":"string"}})"},
      {Kind::kJsonSchema, R"({"type":"integer","minimum":5,"maximum":1})"},
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
  };
  for (const Form& bad : cases) {
    const auto grammar = compile(bad.kind, bad.text);
    ASSERT_FALSE(grammar.ok()) << bad.text.substr(0, 200);
    EXPECT_LT(grammar.error().size(), 400u);
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
