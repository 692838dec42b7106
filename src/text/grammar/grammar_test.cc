// What grammars let through, id by id.
#include "text/grammar/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "text/grammar/grammar_for_test.h"

namespace nibble {
namespace {

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
      {R"([]a]+)", {"]", "a]a"}, {"", "b", "a]b"}},
      {R"([^]a][]])", {"b]", "\n]"}, {"a]", "]]", "bb"}},
      {R"([\^]a][[]\])", {"^a][]"}, {"a", "]"}},
      // re.escape()
      {R"(a\ b\&\~\#\-\.\!\"\,)", {R"(a b&~#-.!",)"}, {R"(a\ b)"}},
      {"\\\n\\\t[\\ \\#]", {"\n\t ", "\n\t#"}, {"\\"}},
      {"(?P<year_2>[0-9]{2})-(?<x>a)[(?P<]", {"26-a(", "26-aP"}, {"26-a", "-a("}},
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

}  // namespace
}  // namespace nibble
