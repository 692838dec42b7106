// The parser on what models write, right and wrong. Recovery cases carry the numbers of the list of
// failures seen in the wild with other engines; texts spell special tokens out.
#include <gtest/gtest.h>

#include <random>

#include "text/chat/harmony_for_test.h"

namespace nibble {
namespace {

struct Parsed {
  std::string trace;
  HarmonyCounts counts;
};

const Harmony& harmony() {
  static const Harmony harmony(byte_tokenizer());
  return harmony;
}

Parsed run(const std::string& text, const HarmonyStart& start = {},
           const std::optional<std::vector<std::string>>& functions = {}) {
  HarmonyParser parser(harmony(), start, functions);
  std::vector<HarmonyEvent> events;
  for (const int32_t id : byte_tokenizer().encode(text, Specials::kRecognize)) {
    parser.push(id, events);
  }
  parser.finish(events);
  return {trace(events), parser.counts()};
}

void expect_clean(const std::string& text, const std::string& expected) {
  const Parsed got = run(text);
  EXPECT_EQ(got.trace, expected) << text;
  EXPECT_EQ(got.counts.malformed, 0) << text;
}

void expect_repaired(const std::string& text, const std::string& expected, int64_t malformed = 1) {
  const Parsed got = run(text);
  EXPECT_EQ(got.trace, expected) << text;
  EXPECT_EQ(got.counts.malformed, malformed) << text;
}

TEST(HarmonyParser, ReasoningThenAnswer) {
  const Parsed got = run(
      "<|channel|>analysis<|message|>Simple.<|end|><|start|>assistant<|channel|>final<|message|>"
      "2 + 2 = 4.<|return|>");
  EXPECT_EQ(got.trace, "reasoning [analysis] Simple.\ncontent [assistantfinal] 2 + 2 = 4.\n");
  EXPECT_EQ(got.counts.malformed, 0);
  EXPECT_EQ(got.counts.reasoning_tokens, 7);  // one a byte
}

TEST(HarmonyParser, CallsInEverySpelling) {
  for (const std::string header :
       {"<|channel|>commentary to=functions.f <|constrain|>json",
        "<|channel|>commentary to=functions.f<|constrain|>json",
        "<|channel|>commentary to=functions.f json", "<|channel|>commentary to=functions.f",
        " to=functions.f<|channel|>commentary json", " to=functions.f<|channel|>commentary",
        "<|channel|>analysis to=functions.f code"}) {
    const Parsed got = run(header + "<|message|>{\"a\":1}<|call|>");
    EXPECT_TRUE(got.trace.starts_with("call f [")) << got.trace;
    EXPECT_TRUE(got.trace.ends_with("] {\"a\":1}\n")) << got.trace;
    EXPECT_EQ(got.counts.malformed, 0) << header;
  }
}

TEST(HarmonyParser, PreambleIsContent) {
  expect_clean(
      "<|channel|>commentary<|message|>Plan: ...<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.f <|constrain|>json<|message|>{}<|call|>",
      "content [commentary] Plan: ...\ncall f [assistantcommentary to=functions.f json] {}\n");
}

TEST(HarmonyParser, ConstrainedAnswer) {
  expect_clean("<|channel|>final <|constrain|>json<|message|>{\"ok\":true}<|return|>",
               "content [final json] {\"ok\":true}\n");
}

TEST(HarmonyParser, HeaderFields) {
  HarmonyParser parser(harmony());
  std::vector<HarmonyEvent> events;
  for (const int32_t id : byte_tokenizer().encode(
           "<|channel|>commentary to=functions.get_stock <|constrain|>json<|message|>",
           Specials::kRecognize)) {
    parser.push(id, events);
  }
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].header.author, "assistant");
  EXPECT_EQ(events[0].header.channel, "commentary");
  EXPECT_EQ(events[0].header.recipient, "functions.get_stock");
  EXPECT_EQ(events[0].header.content_type, "<|constrain|>json");
  EXPECT_EQ(events[0].function, "get_stock");
}

// 1: an answer closed twice, or text behind it.
TEST(HarmonyRecovery, Case1ClosedTwice) {
  expect_repaired("<|channel|>final<|message|>4.<|end|><|return|>", "content [final] 4.\n");
  expect_repaired("<|channel|>final<|message|>4.<|end|><|end|><|end|>", "content [final] 4.\n");
  expect_repaired("<|channel|>final<|message|>4.<|end|>More.",
                  "content [final] 4.\ncontent [] More.\n");
  expect_repaired("<|channel|>analysis<|message|>Hm.<|end|>assistant<|channel|>final<|message|>4.",
                  "reasoning [analysis] Hm.\ncontent [assistantfinal] 4.\n");
  expect_repaired("<|channel|>analysis<|message|>Hm.<|end|><|channel|>final<|message|>4.",
                  "reasoning [analysis] Hm.\ncontent [final] 4.\n");
}

// 2: no header at all.
TEST(HarmonyRecovery, Case2NoHeader) {
  expect_repaired("I'm sorry, but I can't help with that.<|end|><|start|>assistant",
                  "content [] I'm sorry, but I can't help with that.\nstray [assistant]\n");
  expect_repaired("<|message|>Hello<|return|>", "content [] Hello\n");
  expect_repaired("<|start|>assistant<|message|>Hello<|return|>", "content [assistant] Hello\n", 2);
  expect_repaired("A<|end|>", "content [] A\n");
  expect_repaired("to be or not<|return|>", "content [] to be or not\n");
}

// 3: no <|message|>.
TEST(HarmonyRecovery, Case3NoMessageToken) {
  expect_repaired("<|channel|>final {\"a\": 1}<|return|>", "content [final ] {\"a\": 1}\n");
  expect_repaired("<|channel|>final{\"a\": 1}<|return|>", "content [final] {\"a\": 1}\n");
  expect_repaired("<|channel|>final json {\"a\": 1}<|return|>",
                  "content [final json ] {\"a\": 1}\n");
  expect_repaired("<|channel|>final <|constrain|>json{\"a\": 1}<|return|>",
                  "content [final json] {\"a\": 1}\n");
  expect_repaired("<|channel|>final Hello there, friend.<|return|>",
                  "content [final ] Hello there, friend.\n");
  expect_repaired("<|channel|>final Hello<|return|>", "content [final ] Hello\n");
  expect_repaired("<|channel|>analysis Hm<|end|><|start|>assistant<|channel|>final<|message|>4",
                  "reasoning [analysis ] Hm\ncontent [assistantfinal] 4\n");
  expect_repaired("<|channel|>commentary to=functions.f {\"a\": 1}<|call|>",
                  "call f [commentary to=functions.f ] {\"a\": 1}\n");
  expect_repaired("<|channel|>commentary to=functions.f json{\"a\": 1}<|call|>",
                  "call f [commentary to=functions.f json] {\"a\": 1}\n");
  expect_repaired("<|channel|>commentary to=functions.f<|call|>",
                  "call f [commentary to=functions.f] \n");
  expect_repaired("<|channel|>final<|return|>", "content [final] \n");
}

// 4: garbage where the channel stands.
TEST(HarmonyRecovery, Case4GarbageChannel) {
  expect_repaired("<|channel|>commentary?<|message|>x", "content [commentary?] x\n");
  expect_repaired("<|channel|>?!?<|message|>x", "content [?!?] x\n");
  expect_repaired("<|channel|>finalx<|message|>x", "content [finalx] x\n");
  expect_repaired("<|channel|>analysis_<|message|>x", "reasoning [analysis_] x\n");
  expect_repaired("<|channel|>commentary to=assistant<|channel|>analysis<|message|>x",
                  "reasoning [commentary to=assistantanalysis] x\n");
  expect_repaired("<|channel|><|channel|>final<|message|>x", "content [final] x\n");
  expect_repaired("<|channel|><|message|>x", "content [] x\n");
  expect_repaired("<|channel|>Sure, here it is.<|return|>", "content [] Sure, here it is.\n");
}

// 5: names and recipients.
TEST(HarmonyRecovery, Case5Recipients) {
  expect_clean("<|channel|>commentary to=functions.x<|constrain|>json<|message|>{}",
               "call x [commentary to=functions.xjson] {}\n");
  expect_clean("<|channel|>commentary to=get_weather json<|message|>{}",
               "call get_weather [commentary to=get_weather json] {}\n");
  expect_clean("<|channel|>commentary functions.x<|message|>{}",
               "call x [commentary functions.x] {}\n");
  expect_repaired("<|channel|>commentaryto=functions.x json<|message|>{}",
                  "call x [commentaryto=functions.x json] {}\n");
  expect_repaired("assistantto=functions.x<|channel|>commentary<|message|>{}",
                  "call x [assistantto=functions.xcommentary] {}\n");
  const std::string spelled =
      "<"
      "|constrain|"
      ">json";  // ordinary text below
  HarmonyParser parser(harmony());
  std::vector<HarmonyEvent> events;
  const auto push = [&](const std::string& text, Specials specials) {
    for (const int32_t id : byte_tokenizer().encode(text, specials)) parser.push(id, events);
  };
  push("<|channel|>commentary to=functions.x", Specials::kRecognize);
  push(spelled, Specials::kAsText);
  push("<|message|>{}<|call|>", Specials::kRecognize);
  EXPECT_EQ(trace(events), "call x [commentary to=functions.x" + spelled + "] {}\n");
  EXPECT_EQ(parser.counts().malformed, 1);
}

// 6: stuck in the author.
TEST(HarmonyRecovery, Case6RepeatedAssistant) {
  expect_repaired("assistantassistant<|channel|>final<|message|>x",
                  "content [assistantassistantfinal] x\n");
  expect_repaired("<|start|>assistantassistant<|channel|>final<|message|>x",
                  "content [assistantassistantfinal] x\n", 2);
  // Never a channel: content from where a header would be too long.
  std::string stuck;
  for (int i = 0; i < 100; ++i) stuck += "assistant";
  const Parsed got = run(stuck);
  EXPECT_TRUE(got.trace.starts_with("content [assistant")) << got.trace;
  std::string joined = got.trace.substr(9);
  std::erase_if(joined, [](char c) { return c == ']' || c == ' ' || c == '\n'; });
  EXPECT_EQ(joined, stuck);
}

// 7: out of tokens inside a header or the reasoning.
TEST(HarmonyRecovery, Case7CutOff) {
  expect_clean("<|channel|>ana", "stray [ana]\n");
  expect_clean("<|channel|>analysis<|message|>Let me th", "reasoning [analysis] Let me th\n");
  expect_clean("<|channel|>analysis<|message|>Hm.<|end|><|start|>assi",
               "reasoning [analysis] Hm.\nstray [assi]\n");
  expect_clean("<|channel|>commentary to=functions.get_st",
               "stray [commentary to=functions.get_st]\n");
  expect_clean("", "");
}

// 8: a call to a tool that nobody runs.
TEST(HarmonyRecovery, Case8UnaskedBuiltinCall) {
  expect_clean("<|channel|>analysis to=container.exec code<|message|>{\"cmd\":[\"ls\"]}<|call|>",
               "content [analysis to=container.exec code] {\"cmd\":[\"ls\"]}\n");
  expect_clean(" to=python<|channel|>analysis code<|message|>print(1)<|call|>",
               "content [ to=pythonanalysis code] print(1)\n");
  // Unless the caller has a function of that name.
  EXPECT_EQ(
      run(" to=python<|channel|>analysis code<|message|>print(1)<|call|>", {}, {{"python"}}).trace,
      "call python [ to=pythonanalysis code] print(1)\n");
}

TEST(HarmonyRecovery, SpecialTokensInsideContent) {
  expect_repaired("<|channel|>final<|message|>a<|message|>b<|constrain|>c",
                  "content [final] abc\n");
  expect_repaired("<|channel|>analysis<|message|>a<|channel|>final<|message|>b",
                  "reasoning [analysis] a\ncontent [final] b\n");
  expect_repaired("<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b",
                  "reasoning [analysis] a\ncontent [assistantfinal] b\n");
  expect_clean("<|channel|>final<|message|>a<|reserved|><|endoftext|>b", "content [final] ab\n");
}

TEST(HarmonyRecovery, OtherAuthors) {
  expect_repaired("<|channel|>final<|message|>a<|end|><|start|>user<|message|>b",
                  "content [final] a\ncontent [user] b\n");
  expect_repaired(
      "<|channel|>final<|message|>a<|end|><|start|>functions.f to=assistant<|channel|>commentary"
      "<|message|>b",
      "content [final] a\ncontent [functions.f to=assistantcommentary] b\n");
}

TEST(HarmonyParser, TextComesAtOnceAndInWholeCharacters) {
  HarmonyParser parser(harmony());
  std::vector<HarmonyEvent> events;
  for (const int32_t id :
       byte_tokenizer().encode("<|channel|>final<|message|>", Specials::kRecognize)) {
    parser.push(id, events);
  }
  const std::string text = "a\xC3\xA9\xF0\x9F\x92\x96z";
  std::vector<std::string> pieces;
  for (const char c : text) {
    events.clear();
    parser.push(static_cast<uint8_t>(c), events);
    pieces.push_back(events.empty() ? "" : events[0].text);
  }
  EXPECT_EQ(pieces,
            (std::vector<std::string>{"a", "", "\xC3\xA9", "", "", "", "\xF0\x9F\x92\x96", "z"}));
  // Half a character at the end of a message does not leak into the next.
  events.clear();
  parser.push(0xF0, events);
  parser.push(harmony().ids().end, events);
  EXPECT_EQ(trace(events), "\xEF\xBF\xBD\n");
}

// A refusal without a header is streamed, not held back to its end.
TEST(HarmonyParser, TextWithoutHeaderStreams) {
  HarmonyParser parser(harmony());
  std::vector<HarmonyEvent> events;
  for (const char c : std::string("I'm")) parser.push(c, events);
  EXPECT_EQ(trace(events), "content [] I'm");
}

TEST(HarmonyParser, StartsInsideAPrefilledMessage) {
  const HarmonyStart final_start{.in_content = true,
                                 .header = {.author = "assistant", .channel = "final"}};
  EXPECT_EQ(run("x<|return|>", final_start).trace, "content [] x\n");
  EXPECT_EQ(run("", final_start).trace, "content [] \n");
  const HarmonyStart analysis{.in_content = true,
                              .header = {.author = "assistant", .channel = "analysis"}};
  EXPECT_EQ(run("x<|end|><|start|>assistant<|channel|>final<|message|>y", analysis).trace,
            "reasoning [] x\ncontent [assistantfinal] y\n");
  const HarmonyStart call{
      .in_content = true,
      .header = {.author = "assistant", .recipient = "functions.f", .channel = "commentary"}};
  EXPECT_EQ(run("{}<|call|>", call).trace, "call f [] {}\n");
}

// Sequences of what headers are made of, in any order, and bytes that are not UTF-8.
TEST(HarmonyParser, AnyIdsGiveAllText) {
  const std::vector<std::string> pieces = {"<|start|>",
                                           "<|end|>",
                                           "<|message|>",
                                           "<|channel|>",
                                           "<|constrain|>",
                                           "<|call|>",
                                           "<|return|>",
                                           "<|reserved|>",
                                           "assistant",
                                           "analysis",
                                           "commentary",
                                           "final",
                                           " to=",
                                           "to=functions.f",
                                           "functions.",
                                           "python",
                                           "json",
                                           " ",
                                           "\n",
                                           "{\"a\": 1}",
                                           "user",
                                           "x",
                                           "?",
                                           "<|",
                                           "\xF0\x9F",
                                           "\x92\x96",
                                           "\xFF",
                                           "\xC3\xA9"};
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::vector<int32_t> ids;
    for (size_t n = random() % 12; n > 0; --n) {
      const auto piece =
          byte_tokenizer().encode(pieces[random() % pieces.size()], Specials::kRecognize);
      ids.insert(ids.end(), piece.begin(), piece.end());
    }
    if (round % 16 == 0) ids.insert(ids.end(), {-1, 1 << 30, 265, static_cast<int32_t>(random())});
    check_parse(harmony(), start_of(static_cast<char>(random() % 4)), ids);
  }
}

TEST(HarmonyParser, ACopyIsASnapshot) {
  HarmonyParser parser(harmony());
  std::vector<HarmonyEvent> ignored, events, again;
  for (const int32_t id :
       byte_tokenizer().encode("<|channel|>final<|message|>a\xC3", Specials::kRecognize)) {
    parser.push(id, ignored);
  }
  HarmonyParser copy = parser;
  parser.push('x', events);
  copy.push(0xA9, again);
  EXPECT_EQ(trace(events), "\xEF\xBF\xBDx");
  EXPECT_EQ(trace(again), "\xC3\xA9");
}

}  // namespace
}  // namespace nibble
