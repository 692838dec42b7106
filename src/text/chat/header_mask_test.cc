// The mask lets all headers through that models write well, and nothing else.
#include "text/chat/header_mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <random>

#include "text/chat/chat_stream.h"
#include "text/chat/harmony_for_test.h"
#include "text/tokenizer/o200k_for_test.h"

namespace nibble {
namespace {

const HeaderRules kRules{.recipients = {"functions.get_stock", "functions.f", "python"},
                         .must = HeaderRules::Must::kNothing};

// The ids that the mask allows; nothing where it does not apply.
std::optional<std::vector<int32_t>> allowed(const HeaderMask& mask, const Tokenizer& tokenizer) {
  std::vector<uint32_t> bits((tokenizer.size() + 31) / 32, ~0u);
  if (!mask.mask(bits)) return std::nullopt;
  std::vector<int32_t> out;
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    if (bits[id / 32] >> (id % 32) & 1) out.push_back(id);
  }
  return out;
}

// The first of the text's ids that the mask forbids, as text; empty: none.
std::string first_forbidden(const Harmony& harmony, const std::string& text,
                            const HeaderRules& rules) {
  HeaderMask mask(harmony, {}, rules);
  for (const int32_t id : harmony.tokenizer().encode(text, Specials::kRecognize)) {
    const auto ids = allowed(mask, harmony.tokenizer());
    if (ids && std::find(ids->begin(), ids->end(), id) == ids->end()) {
      return std::string(harmony.tokenizer().token_bytes(id));
    }
    mask.accept(id);
  }
  return "";
}

const char* const kAnswer =
    "<|channel|>analysis<|message|>Simple.<|end|><|start|>assistant<|channel|>final<|message|>4."
    "<|return|>";

TEST(HeaderMask, LetsGoodHeadersThrough) {
  const Harmony real(o200k()), bytes(byte_tokenizer());
  for (const std::string text :
       {kAnswer, "<|channel|>final <|constrain|>json<|message|>{\"ok\":true}<|return|>",
        "<|channel|>final<|constrain|>json<|message|>{}<|return|>",
        ("<|channel|>commentary<|message|>Plan<|end|><|start|>assistant<|channel|>commentary "
         "to=functions.f <|constrain|>json<|message|>{}<|call|>"),
        "<|channel|>commentary to=functions.get_stock json<|message|>{}<|call|>",
        " to=functions.get_stock<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
        " to=functions.get_stock<|channel|>commentary json<|message|>{}<|call|>",
        "<|channel|>analysis to=python code<|message|>1<|call|>"}) {
    EXPECT_EQ(first_forbidden(real, text, kRules), "") << text;
    EXPECT_EQ(first_forbidden(bytes, text, kRules), "") << text;
  }
}

TEST(HeaderMask, ForbidsTheRest) {
  const Harmony bytes(byte_tokenizer());
  EXPECT_EQ(first_forbidden(bytes, "I'm sorry", kRules), "I");
  EXPECT_EQ(first_forbidden(bytes, "<|channel|>commentary?<|message|>", kRules), "?");
  EXPECT_EQ(first_forbidden(bytes, "<|channel|>final {\"a\"", kRules), "{");
  EXPECT_EQ(first_forbidden(bytes, "<|channel|>final<|return|>", kRules), "<|return|>");
  EXPECT_EQ(first_forbidden(bytes, "<|channel|>commentary to=functions.x", kRules), "x");
  EXPECT_EQ(first_forbidden(bytes, "<|channel|>final<|message|>x<|end|>more", kRules), "m");
  EXPECT_EQ(first_forbidden(bytes, "<|channel|>final<|message|>x<|end|><|start|>user", kRules),
            "u");
}

TEST(HeaderMask, GivesUpOnAHeaderThatIsNoneAlready) {
  const Harmony bytes(byte_tokenizer());
  HeaderMask mask(bytes, {}, kRules);
  mask.accept('I');
  EXPECT_FALSE(allowed(mask, byte_tokenizer()).has_value());
  mask.accept(bytes.ids().end);
  EXPECT_EQ(allowed(mask, byte_tokenizer()),
            (std::vector<int32_t>{bytes.ids().stop, bytes.ids().start}));
}

// Any walk through what is allowed is a well-formed answer; with Must::kCall it holds a call, with
// kAnswer a call or a final message.
void walk(const Harmony& harmony, HeaderRules::Must must, uint32_t seed) {
  std::mt19937 random(seed);
  HeaderRules rules = kRules;
  rules.recipients.pop_back();
  rules.must = must;
  HeaderMask mask(harmony, {}, rules);
  HarmonyParser parser(harmony);
  std::vector<HarmonyEvent> events;
  const std::vector<int32_t> wanted_ends = {harmony.ids().stop, harmony.ids().call,
                                            harmony.ids().end};
  bool ended = false;
  for (int i = 0; i < 2000 && !ended; ++i) {
    const auto ids = allowed(mask, harmony.tokenizer());
    int32_t id = 'x';  // some text
    if (ids && ids->size() < 100) {
      id = (*ids)[random() % ids->size()];
    } else if (random() % 3 == 0) {
      const int32_t end = wanted_ends[random() % wanted_ends.size()];
      if (!ids || std::find(ids->begin(), ids->end(), end) != ids->end()) id = end;
    }
    mask.accept(id);
    parser.push(id, events);
    ended = id == harmony.ids().stop || id == harmony.ids().call;
  }
  ASSERT_TRUE(ended) << trace(events);
  EXPECT_LE(parser.counts().malformed, 1) << trace(events);
  const bool has_call = std::any_of(events.begin(), events.end(), [](const HarmonyEvent& event) {
    return event.part == ChatPart::kToolCall;
  });
  const bool has_final = std::any_of(events.begin(), events.end(), [](const HarmonyEvent& event) {
    return event.header.channel == "final";
  });
  EXPECT_TRUE(has_call || must != HeaderRules::Must::kCall) << trace(events);
  EXPECT_TRUE(has_call || has_final || must != HeaderRules::Must::kAnswer) << trace(events);
  EXPECT_EQ(trace(events).find("stray"), std::string::npos) << trace(events);
}

TEST(HeaderMask, EveryWalkIsAnAnswer) {
  const Harmony bytes(byte_tokenizer());
  for (uint32_t seed = 0; seed < 300; ++seed) {
    for (const auto must :
         {HeaderRules::Must::kNothing, HeaderRules::Must::kCall, HeaderRules::Must::kAnswer}) {
      walk(bytes, must, seed);
    }
  }
}

TEST(HeaderMask, ARequiredCallFollowsAtMostOneAnalysis) {
  const Harmony bytes(byte_tokenizer());
  HeaderRules rules = kRules;
  rules.must = HeaderRules::Must::kCall;
  EXPECT_EQ(first_forbidden(bytes, "<|channel|>final", rules), "f");
  EXPECT_EQ(first_forbidden(bytes, "<|channel|>analysis<|message|>x<|return|>", rules),
            "<|return|>");
  EXPECT_EQ(first_forbidden(bytes, "<|channel|>analysis<|message|>x<|endoftext|>", rules),
            "<|endoftext|>");
  EXPECT_EQ(first_forbidden(bytes, kAnswer, rules), "f");
  EXPECT_EQ(first_forbidden(bytes,
                            "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>"
                            "commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
                            rules),
            "");
  EXPECT_EQ(first_forbidden(bytes,
                            "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>"
                            "analysis<|message|>",
                            rules),
            "<|message|>");
}

TEST(ChatWatcher, MasksWhereACallIsRequiredAndTakesItBack) {
  const Harmony bytes(byte_tokenizer());
  ChatStreamOptions options;
  options.functions = {"f"};
  options.must = HeaderRules::Must::kCall;
  ChatWatcher watcher(bytes, options);
  const auto count = [&] {
    std::vector<uint32_t> bits((byte_tokenizer().size() + 31) / 32, ~0u);
    EXPECT_TRUE(watcher.mask(bits));
    int n = 0;
    for (const uint32_t word : bits) n += std::popcount(word);
    return n;
  };
  EXPECT_EQ(count(), 2);  // <|channel|> or " "
  EXPECT_EQ(watcher.accept(bytes.ids().channel), Watch::kGoOn);
  EXPECT_EQ(watcher.accept('c'), Watch::kGoOn);
  EXPECT_EQ(count(), 1);  // "o"
  watcher.rollback(1);
  EXPECT_EQ(count(), 2);  // "a" or "c"
}

// Feeds the text; where the mask forbids one of its ids, says what was left.
std::string forbidden_rest(ChatWatcher& watcher, const std::string& text) {
  const auto ids = byte_tokenizer().encode(text, Specials::kRecognize);
  for (size_t i = 0; i < ids.size(); ++i) {
    std::vector<uint32_t> bits((byte_tokenizer().size() + 31) / 32, ~0u);
    watcher.mask(bits);
    const bool allowed = bits[static_cast<size_t>(ids[i]) / 32] >> (ids[i] % 32) & 1;
    if (!allowed) return byte_tokenizer().decode(std::span(ids).subspan(i));
    watcher.accept(ids[i]);
  }
  return "";
}

TEST(ChatWatcher, LetsNoCallThroughThatWasNotOffered) {
  const Harmony bytes(byte_tokenizer());
  const auto rest = [&](const std::string& text) {
    ChatWatcher watcher(bytes, {});
    return forbidden_rest(watcher, text);
  };
  const std::string thought = "<|channel|>analysis<|message|>x<|end|><|start|>assistant";
  EXPECT_EQ(rest(thought + "<|channel|>commentary to=functions.f"), " to=functions.f");
  EXPECT_EQ(rest(thought + " to=functions.f<|channel|>"), " to=functions.f<|channel|>");
  EXPECT_EQ(rest("<|channel|>analysis to=python code"), " to=python code");
  EXPECT_EQ(rest(thought + "<|channel|>final<|message|>4.<|return|>"), "");
  // <|channel|> inside a message opens a header too.
  EXPECT_EQ(rest("<|channel|>final<|message|>x<|channel|>commentary to=f"), " to=f");
  EXPECT_EQ(rest("<|channel|>final<|message|>x<|channel|>final<|message|>y<|return|>"), "");
}

TEST(ChatWatcher, AStopIdOfTheCallersEndsAFormWhereItMay) {
  const Harmony bytes(byte_tokenizer());
  const GrammarCompiler compiler(byte_tokenizer(), byte_tokenizer().size());
  ChatStreamOptions options;
  options.must = HeaderRules::Must::kAnswer;
  options.content = *compiler.compile({.kind = GrammarSpec::Kind::kRegex, .text = "a;?b"});
  options.stop_ids = {';'};
  const auto rest = [&](const std::string& text) {
    ChatWatcher watcher(bytes, options);
    return forbidden_rest(watcher, "<|channel|>final<|message|>" + text);
  };
  EXPECT_EQ(rest("a;"), ";");
  EXPECT_EQ(rest("ab;"), "");
  EXPECT_EQ(rest("ab<|return|>"), "");
  // Not before it, where the answer would be empty.
  ChatWatcher watcher(bytes, options);
  EXPECT_EQ(forbidden_rest(watcher, "<|channel|>analysis<|message|>x;"), ";");
}

TEST(ChatWatcher, NothingMayFollowWhatDidNotFit) {
  const Harmony bytes(byte_tokenizer());
  const GrammarCompiler compiler(byte_tokenizer(), byte_tokenizer().size());
  ChatStreamOptions options;
  options.content = *compiler.compile({.kind = GrammarSpec::Kind::kRegex, .text = "ab"});
  ChatWatcher watcher(bytes, options);
  EXPECT_EQ(forbidden_rest(watcher, "<|channel|>final<|message|>a"), "");
  watcher.accept('x');  // against the mask
  for (const int32_t id : {int32_t{'b'}, bytes.ids().stop}) {
    std::vector<uint32_t> bits((byte_tokenizer().size() + 31) / 32, ~0u);
    EXPECT_TRUE(watcher.mask(bits));
    EXPECT_EQ(bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1, 0u);
  }
  watcher.rollback(1);
  EXPECT_EQ(forbidden_rest(watcher, "b<|return|>"), "");
}

TEST(ChatWatcher, HoldsArgumentsAndAnswersToTheirGrammars) {
  const Harmony bytes(byte_tokenizer());
  const GrammarCompiler compiler(byte_tokenizer(), byte_tokenizer().size());
  ChatStreamOptions options;
  options.functions = {"f", "g"};
  options.must = HeaderRules::Must::kAnswer;
  options.content = *compiler.compile({.kind = GrammarSpec::Kind::kRegex, .text = "yes|no"});
  options.arguments.emplace(
      "f", *compiler.compile({.kind = GrammarSpec::Kind::kJsonSchema,
                              .text = R"({"type":"object","properties":{"n":{"type":"integer"}},)"
                                      R"("required":["n"],"additionalProperties":false})"}));
  const std::string thought = "<|channel|>analysis<|message|>{anything}<|end|><|start|>assistant";
  const auto rest = [&](const std::string& text) {
    ChatWatcher watcher(bytes, options);
    return forbidden_rest(watcher, text);
  };
  EXPECT_EQ(rest(thought + "<|channel|>final<|message|>yes<|return|>"), "");
  EXPECT_EQ(rest(thought + "<|channel|>final<|message|>yet<|return|>"), "t<|return|>");
  EXPECT_EQ(rest(thought + "<|channel|>final<|message|>ye<|return|>"), "<|return|>");
  EXPECT_EQ(rest(thought + "<|channel|>final<|message|>no<|end|>"), "<|end|>");
  EXPECT_EQ(rest("<|channel|>analysis<|message|>x<|return|>"), "<|return|>");
  EXPECT_EQ(rest("<|channel|>commentary<|message|>"), "<|message|>");
  const std::string call = "<|channel|>commentary to=functions.";
  EXPECT_EQ(rest(thought + call + "f <|constrain|>json<|message|>{\"n\": 5}<|call|>"), "");
  EXPECT_EQ(rest(thought + call + "f <|constrain|>json<|message|>{\"m\""), "m\"");
  EXPECT_EQ(rest(thought + call + "f <|constrain|>json<|message|>{\"n\": 5<|call|>"), "<|call|>");
  EXPECT_EQ(rest(thought + call + "g <|constrain|>json<|message|>anything<|call|>"), "");
  EXPECT_EQ(rest(thought + call + "h"), "h");
}

TEST(ChatWatcher, TakesBackWhatGrammarsAccepted) {
  const Harmony bytes(byte_tokenizer());
  const GrammarCompiler compiler(byte_tokenizer(), byte_tokenizer().size());
  ChatStreamOptions options;
  options.start = {.in_content = true, .header = {.author = "assistant", .channel = "final"}};
  options.content = *compiler.compile({.kind = GrammarSpec::Kind::kRegex, .text = "ab|cd"});
  ChatWatcher watcher(bytes, options);
  EXPECT_EQ(forbidden_rest(watcher, "ab<|return|>"), "");
  watcher.rollback(1);
  EXPECT_EQ(forbidden_rest(watcher, "c"), "c");
  watcher.rollback(2);
  EXPECT_EQ(forbidden_rest(watcher, "cd<|return|>"), "");
}

}  // namespace
}  // namespace nibble
