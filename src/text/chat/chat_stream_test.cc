// Deltas and whole replies, the reasons for the end, and stop strings.
#include "text/chat/chat_stream.h"

#include <gtest/gtest.h>

#include "text/chat/harmony_for_test.h"
#include "text/chat/harmony_format.h"

namespace nibble {
namespace {

const Harmony& harmony() {
  static const Harmony harmony(byte_tokenizer());
  return harmony;
}

const HarmonyFormat& format() {
  static const HarmonyFormat format(byte_tokenizer());
  return format;
}

std::vector<int32_t> ids_of(const std::string& text) {
  return byte_tokenizer().encode(text, Specials::kRecognize);
}

constexpr const char* kCallText =
    "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary"
    "<|message|>Looking.<|end|><|start|>assistant<|channel|>commentary to=functions.get "
    "<|constrain|>json<|message|>{\"a\":1}<|call|>";

// Feeds a stream, and checks that the deltas joined are the reply.
struct Fed {
  ChatStream stream;
  size_t num_deltas = 0;

  explicit Fed(const std::string& text, ChatStreamOptions options = {})
      : stream(format(), options) {
    ChatReply joined;
    const auto add = [&](const ChatDelta& delta) {
      num_deltas += !delta.empty();
      joined.reasoning += delta.reasoning;
      joined.content += delta.content;
      for (const ToolCallDelta& call : delta.tool_calls) {
        EXPECT_EQ(call.id.empty(), call.name.empty());
        if (!call.id.empty()) {
          EXPECT_EQ(call.index, joined.tool_calls.size());
          joined.tool_calls.push_back({.id = call.id, .name = call.name, .arguments = ""});
        }
        joined.tool_calls.at(call.index).arguments += call.arguments;
      }
    };
    for (const int32_t id : ids_of(text)) add(stream.push(id));
    add(stream.finish());
    EXPECT_EQ(joined.reasoning, stream.reply().reasoning);
    EXPECT_EQ(joined.content, stream.reply().content);
    EXPECT_EQ(joined.tool_calls.size(), stream.reply().tool_calls.size());
    for (size_t i = 0; i < joined.tool_calls.size(); ++i) {
      EXPECT_EQ(joined.tool_calls[i].id, stream.reply().tool_calls[i].id);
      EXPECT_EQ(joined.tool_calls[i].arguments, stream.reply().tool_calls[i].arguments);
    }
  }
};

TEST(ChatStream, ReasoningPreambleAndCall) {
  ChatStreamOptions options;
  options.functions = {"get"};
  options.call_id_seed = "abc";
  const Fed fed(kCallText, options);
  const ChatReply& reply = fed.stream.reply();
  EXPECT_EQ(reply.reasoning, "Need it.");
  EXPECT_EQ(reply.content, "Looking.");
  ASSERT_EQ(reply.tool_calls.size(), 1u);
  EXPECT_EQ(reply.tool_calls[0].id, "call_abc_0");
  EXPECT_EQ(reply.tool_calls[0].name, "get");
  EXPECT_EQ(reply.tool_calls[0].arguments, "{\"a\":1}");
  EXPECT_EQ(fed.stream.finish_reason(false), "tool_calls");
  EXPECT_EQ(fed.stream.finish_reason(true), "length");
  EXPECT_EQ(fed.stream.reasoning_tokens(), 8);
  // A delta a byte of text, one that opens the call, none for headers.
  EXPECT_EQ(fed.num_deltas, 8u + 8u + 1u + 7u);
}

TEST(ChatStream, CallsAreNumbered) {
  ChatStreamOptions options;
  options.functions = {"a", "b"};
  const Fed fed(
      " to=functions.a<|channel|>commentary<|message|>1<|call|><|start|>assistant to=functions.b"
      "<|channel|>commentary<|message|>2<|call|>",
      options);
  ASSERT_EQ(fed.stream.reply().tool_calls.size(), 2u);
  EXPECT_EQ(fed.stream.reply().tool_calls[0].id, "call__0");
  EXPECT_EQ(fed.stream.reply().tool_calls[1].id, "call__1");
  EXPECT_EQ(fed.stream.reply().tool_calls[1].name, "b");
  EXPECT_EQ(fed.stream.reply().tool_calls[1].arguments, "2");
}

TEST(ChatStream, NothingIsACallThatWasNotOffered) {
  for (const std::string header :
       {"<|channel|>commentary to=functions.get json", " to=functions.get<|channel|>commentary",
        "<|channel|>analysis to=get", "<|channel|>commentary get", "functions.get"}) {
    for (const std::vector<std::string>& offered :
         {std::vector<std::string>{}, std::vector<std::string>{"put"}}) {
      ChatStreamOptions options;
      options.functions = offered;
      const Fed fed(header + "<|message|>{}<|call|>", options);
      EXPECT_TRUE(fed.stream.reply().tool_calls.empty()) << header;
      EXPECT_EQ(fed.stream.finish_reason(false), "stop");
    }
  }
}

TEST(ChatStream, MessagesOfOneKindAreJoinedByNewlines) {
  const Fed fed(
      "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b"
      "<|end|><|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant"
      "<|channel|>final<|message|>d<|return|>");
  EXPECT_EQ(fed.stream.reply().reasoning, "a\nb");
  EXPECT_EQ(fed.stream.reply().content, "c\nd");
  EXPECT_EQ(fed.stream.finish_reason(false), "stop");
}

TEST(ChatStream, OutOfTokensInTheReasoning) {
  const Fed fed("<|channel|>analysis<|message|>Let me th");
  EXPECT_EQ(fed.stream.reply().reasoning, "Let me th");
  EXPECT_EQ(fed.stream.reply().content, "");
  EXPECT_EQ(fed.stream.finish_reason(true), "length");
}

TEST(ChatStream, AForcedCallEndsWithStop) {
  ChatStreamOptions options;
  options.start.in_content = true;
  options.start.header.recipient = "functions.f";
  options.functions = {"f"};
  const Fed fed("{}<|call|>", options);
  ASSERT_EQ(fed.stream.reply().tool_calls.size(), 1u);
  EXPECT_EQ(fed.stream.finish_reason(false), "stop");
}

TEST(ChatStream, StopStringsEndContentOnly) {
  const std::string text =
      "<|channel|>analysis<|message|>END in thought<|end|><|start|>assistant<|channel|>final"
      "<|message|>one END two<|return|>";
  ChatStreamOptions options;
  options.stop = StopStrings({"XX", "END"});
  const Fed fed(text, options);
  EXPECT_EQ(fed.stream.reply().reasoning, "END in thought");
  EXPECT_EQ(fed.stream.reply().content, "one ");
  EXPECT_TRUE(fed.stream.stopped());
  EXPECT_EQ(fed.stream.finish_reason(true), "stop");
  options.stop = StopStrings({"XX", "END"}, true);
  EXPECT_EQ(Fed(text, options).stream.reply().content, "one END");
}

TEST(ChatStream, WhatMightHaveBeenAStopStringIsGivenBack) {
  ChatStreamOptions options;
  options.stop = StopStrings({"END"});
  EXPECT_EQ(Fed("<|channel|>final<|message|>one EN<|return|>", options).stream.reply().content,
            "one EN");
  EXPECT_EQ(Fed("<|channel|>final<|message|>one EN", options).stream.reply().content, "one EN");
  // Not over the border of two messages.
  const Fed two(
      "<|channel|>commentary<|message|>E<|end|><|start|>assistant<|channel|>final"
      "<|message|>ND<|return|>",
      options);
  EXPECT_EQ(two.stream.reply().content, "E\nND");
}

TEST(ChatWatcher, StopsAtTheByteThatCompletesTheStopString) {
  ChatStreamOptions options;
  options.stop = StopStrings({"END"});
  ChatWatcher watcher(harmony(), options);
  const auto accept = [&](const std::string& text) {
    Watch last = Watch::kGoOn;
    for (const int32_t id : ids_of(text)) last = watcher.accept(id);
    return last;
  };
  EXPECT_EQ(accept("<|channel|>analysis<|message|>END<|end|>"), Watch::kGoOn);
  EXPECT_EQ(accept("<|start|>assistant<|channel|>final<|message|>EN"), Watch::kGoOn);
  EXPECT_EQ(accept("x"), Watch::kGoOn);
  watcher.rollback(1);
  EXPECT_EQ(accept("D"), Watch::kStop);
  watcher.rollback(2);
  EXPECT_EQ(accept("D"), Watch::kGoOn);
  std::vector<uint32_t> bits(9, ~0u);
  EXPECT_FALSE(watcher.mask(bits));
}

TEST(HarmonyFormat, RendersWithinTheMemoryThatItIsGranted) {
  Chat chat;
  chat.messages.push_back({.role = Role::kUser, .content = std::string(10'000, 'x')});
  size_t granted = 0;
  EXPECT_TRUE(format().render(chat, [&](size_t bytes) { return granted = bytes, true; }));
  EXPECT_GE(granted, kEncodedBytes * 10'000);
  const auto refused = format().render(chat, [](size_t) { return false; });
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), kNoRoom);
}

// For drafts: how well text is foretold depends on its channel.
TEST(ChatWatcher, TellsHeadersReasoningContentAndCallsApart) {
  ChatStreamOptions options;
  options.functions = {"f"};
  ChatWatcher watcher(harmony(), options);
  std::vector<int> parts = {watcher.part()};
  for (const char* text :
       {"<|channel|>analysis", "<|message|>a", "<|end|>", "<|start|>assistant<|channel|>final",
        "<|message|>b",
        "<|end|><|start|>assistant to=functions.f<|channel|>commentary<|message|>{"}) {
    for (const int32_t id : ids_of(text)) watcher.accept(id);
    parts.push_back(watcher.part());
  }
  EXPECT_EQ(parts, (std::vector<int>{0, 0, 1, 0, 0, 2, 3}));
  watcher.rollback(1);
  EXPECT_EQ(watcher.part(), 3);
  for (const int part : parts) EXPECT_LT(part, TokenWatcher::kParts);
}

}  // namespace
}  // namespace nibble
