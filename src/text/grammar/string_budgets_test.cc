// Bounded strings: the rules that are rewritten, that the bounds are kept to the character whatever
// the tokens, and that no rule but theirs changes.
#include "text/grammar/string_budgets.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "text/chat/harmony_for_test.h"
#include "text/grammar/grammar.h"
#include "text/grammar/tag_parts.h"
#include "text/tokenizer/o200k_for_test.h"

namespace nibble {
namespace {

TEST(StringBudgets, RewritesRulesOfBoundedStringsAlone) {
  const std::string character = R"(a_characters ::= (([^\0-\x1f\"\\])))";
  EXPECT_EQ(with_string_budgets("root ::= \"x\"\n", 0), "root ::= \"x\"\n");
  EXPECT_EQ(with_string_budgets("root ::= ((a_characters{0, 5}))\n" + character, 0),
            "root ::= ((a_characters_budget_5))\n"
            R"(a_characters ::= [^\0-\x1f\"\\])"
            "\n"
            R"(a_characters_budget_5[max_chars=5] ::= [^\0-\x1f\"\\]*)");
  EXPECT_TRUE(with_string_budgets("root ::= ((a_characters{2, 5}))\n" + character, 0)
                  .starts_with("root ::= ((a_characters{2, 2} a_characters_budget_3))\n"));
  EXPECT_TRUE(with_string_budgets("root ::= ((a_characters{5, 5}))\n" + character, 0)
                  .starts_with("root ::= ((a_characters{5, 5} ))\n"));
  for (const std::string kept : {"root ::= ((\"a_characters{0, 5}\" b_characters{0, 5}))\n",
                                 "root ::= (([a_characters{0, 5}\\]] a_characters{3, -1}))\n"}) {
    EXPECT_TRUE(with_string_budgets(kept + character, 0).starts_with(kept)) << kept;
  }
}

const std::string kBounded = R"({"type":"object","properties":{"s":{"type":"string",)";

size_t characters(const std::string& utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string in_a_tag(const std::string& schema) {
  return R"({"type":"structural_tag","format":{"type":"json_schema","json_schema":)" + schema +
         "}}";
}

// A text by tokens drawn from the masks, the longest of a few, until the text may end.
std::string draw(const Tokenizer& tokenizer, const Grammar& grammar, int32_t end, uint32_t seed) {
  std::mt19937 random(seed);
  GrammarRun run(grammar, {end});
  std::string text;
  std::vector<uint32_t> bits(static_cast<size_t>(tokenizer.size() + 31) / 32);
  for (int step = 0; step < 3'000; ++step) {
    std::fill(bits.begin(), bits.end(), ~uint32_t{0});
    run.mask(bits);
    const auto is_allowed = [&](int32_t id) { return (bits[id / 32] >> (id % 32) & 1) != 0; };
    if (is_allowed(end)) return text;
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
      if (is_allowed(id)) ids.push_back(id);
    }
    if (ids.empty()) return text + "<nothing fits>";
    int32_t best = ids[random() % ids.size()];
    for (int i = 0; i < 3; ++i) {
      const int32_t other = ids[random() % ids.size()];
      if (tokenizer.token_bytes(other).size() > tokenizer.token_bytes(best).size()) best = other;
    }
    EXPECT_TRUE(run.accept(best));
    text += tokenizer.token_bytes(best);
  }
  return text;
}

// Inside a tag blanks are not bounded, so there it is the string alone.
TEST(StringBudgets, BoundsAreKeptToTheCharacter) {
  const auto check = [](const Tokenizer& tokenizer, int32_t end, size_t least, size_t most,
                        bool in_tag = false) {
    const GrammarCompiler compiler(tokenizer, tokenizer.size());
    const std::string bounds =
        "\"minLength\":" + std::to_string(least) + ",\"maxLength\":" + std::to_string(most);
    GrammarSpec spec{
        .kind = GrammarSpec::Kind::kJsonSchema,
        .text = kBounded + bounds +
                R"(},"n":{"type":"integer"}},"required":["s"],"additionalProperties":false})"};
    if (in_tag)
      spec = {.kind = GrammarSpec::Kind::kStructuralTag,
              .text = in_a_tag(R"({"type":"string",)" + bounds + "}")};
    const auto grammar = compiler.compile(spec);
    ASSERT_TRUE(grammar.ok()) << grammar.error();
    size_t longest = 0;
    for (uint32_t seed = 0; seed < 6; ++seed) {
      const std::string text = draw(tokenizer, *grammar, end, seed);
      const auto json = nlohmann::json::parse(text, nullptr, false);
      ASSERT_TRUE(in_tag || json.is_object()) << text;
      const auto& string = in_tag ? json : json["s"];
      ASSERT_TRUE(string.is_string()) << text;
      const size_t length = characters(string.get<std::string>());
      EXPECT_GE(length, least) << text;
      EXPECT_LE(length, most) << text;
      longest = std::max(longest, length);
    }
    EXPECT_EQ(longest, most);
  };
  check(byte_tokenizer(), 256, 0, 0);
  check(byte_tokenizer(), 256, 3, 3);
  check(byte_tokenizer(), 256, 2, 9);
  check(o200k(), 200'002, 0, 120);
  check(o200k(), 200'002, 3, 200, /*in_tag=*/true);
}

// Masks of rules that lead to no budget are kept for other grammars, those of others are not: each
// grammar has the masks that it has where it is the first.
TEST(StringBudgets, MasksOfOtherGrammarsChangeNothing) {
  const auto schema = [](const std::string& bounds) {
    return GrammarSpec{
        .kind = GrammarSpec::Kind::kJsonSchema,
        .text = R"({"type":"object","properties":{"name":{"type":"string"},"s":{"type":"string")" +
                bounds +
                R"(},"t":{"type":"array","items":{"$ref":"#/properties/s"},"minItems":1,)" +
                R"("maxItems":2}},"required":["name","s","t"]})"};
  };
  const auto rules = [](const std::string& budget) {
    return GrammarSpec{.kind = GrammarSpec::Kind::kEbnf,
                       .text = "root ::= \"<\" word \">\" word\nword ::= \"'\" letters \"'\"\n" +
                               ("letters" + budget) + " ::= [a-z]*"};
  };
  const GrammarSpec specs[] = {schema(""),
                               schema(R"(,"maxLength":90)"),
                               schema(R"(,"minLength":2,"maxLength":70)"),
                               schema(""),
                               rules(""),
                               rules("[max_chars=3]"),
                               rules("[max_chars=9]"),
                               rules("")};
  const GrammarCompiler warm(o200k(), o200k().size());
  for (const GrammarSpec& spec : specs) {
    const GrammarCompiler cold(o200k(), o200k().size());
    const auto one = warm.compile(spec), other = cold.compile(spec);
    ASSERT_TRUE(one.ok() && other.ok());
    std::mt19937 random(1);
    GrammarRun run(*one, {200'002}), alone(*other, {200'002});
    std::vector<uint32_t> bits(static_cast<size_t>(o200k().size() + 31) / 32), bits_alone(bits);
    for (int step = 0; step < 80; ++step) {
      std::fill(bits.begin(), bits.end(), ~uint32_t{0});
      bits_alone = bits;
      run.mask(bits);
      alone.mask(bits_alone);
      ASSERT_EQ(bits, bits_alone) << spec.text << " step " << step;
      int32_t id = 0;
      do {
        id = static_cast<int32_t>(random() % static_cast<uint32_t>(o200k().size()));
      } while ((bits[id / 32] >> (id % 32) & 1) == 0);
      if (id == 200'002) break;
      ASSERT_TRUE(run.accept(id));
      ASSERT_TRUE(alone.accept(id));
    }
  }
}

// What was possible with a rule a character is possible, and nothing else.
TEST(StringBudgets, TakesAStringBackAndGoesOn) {
  const GrammarCompiler compiler(byte_tokenizer(), byte_tokenizer().size());
  const auto grammar = compiler.compile(
      {.kind = GrammarSpec::Kind::kJsonSchema, .text = R"({"type":"string","maxLength":5})"});
  ASSERT_TRUE(grammar.ok()) << grammar.error();
  GrammarRun run(*grammar, {256});
  const auto feed = [&](const std::string& text) {
    size_t fit = 0;
    while (fit < text.size() && run.accept(static_cast<unsigned char>(text[fit]))) ++fit;
    return fit;
  };
  EXPECT_EQ(feed("\"abcdef"), 6u);
  run.rollback_to(4);
  EXPECT_EQ(feed("xy\""), 3u);
  run.rollback_to(1);
  EXPECT_EQ(feed("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3"), 10u);  // five of two bytes
  EXPECT_EQ(feed("\n"), 0u);
  EXPECT_EQ(feed("\""), 1u);
}

// What its schema makes of itself inside a tag: objects are closed, and blanks are not counted.
TEST(StringBudgets, TagsAreWhatTheyAreWithout) {
  const GrammarCompiler compiler(byte_tokenizer(), byte_tokenizer().size());
  for (const char* most : {"3", "300"}) {
    const std::string schema = kBounded + "\"maxLength\":" + most + "}}}";
    const auto grammar =
        compiler.compile({.kind = GrammarSpec::Kind::kStructuralTag, .text = in_a_tag(schema)});
    ASSERT_TRUE(grammar.ok()) << grammar.error();
    const auto fits = [&](const std::string& text) {
      GrammarRun run(*grammar, {256});
      size_t fit = 0;
      while (fit < text.size() && run.accept(static_cast<unsigned char>(text[fit]))) ++fit;
      return fit == text.size();
    };
    EXPECT_TRUE(fits("{" + std::string(50, ' ') + R"("s":"abc"})")) << most;
    EXPECT_EQ(fits(R"({"s":"abcd"})"), std::string(most) == "300");
    EXPECT_FALSE(fits(R"({"s":"abc","t":1})")) << most;
  }
}

TEST(StringBudgets, OfTagsThoseOfJsonAloneBecomeRules) {
  std::string tag = R"({"a":{"type":"json_schema","json_schema":{"x":1},"lenient":true},)"
                    R"("b":{"type":"qwen_xml_parameter","json_schema":{"x":2}}})";
  const auto keep = [](GrammarSpec&) { return std::string(); };
  EXPECT_EQ(keep_parts(tag, keep, [](const std::string& schema) { return "of " + schema; }), "");
  EXPECT_EQ(tag, R"({"a":{"type":"grammar","grammar":"of {\"x\":1}"},)"
                 R"("b":{"type":"qwen_xml_parameter","json_schema":{"x":2}}})");
}

}  // namespace
}  // namespace nibble
