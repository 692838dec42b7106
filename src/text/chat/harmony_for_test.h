// For tests of Harmony: a vocabulary of single bytes with ids of its own, and events as text.
#pragma once

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/chat/harmony.h"
#include "text/utf8.h"

namespace nibble {

// Ids 0..255 are the bytes; then come special tokens of these names: "end" is <|end|>, "<think>"
// itself.
inline Tokenizer make_byte_tokenizer(const std::vector<std::string>& specials) {
  // GPT-2's printable stand-ins for the bytes, in JSON's escapes.
  std::string json = R"({"model":{"type":"BPE","merges":[],"vocab":{)";
  int next_stand_in = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    char escaped[16];
    snprintf(escaped, sizeof escaped, "\\u%04x", printable ? byte : next_stand_in++);
    json += std::string(byte == 0 ? "\"" : ",\"") + escaped + "\":" + std::to_string(byte);
  }
  json += R"(}},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},
             "decoder":{"type":"ByteLevel"},"added_tokens":[)";
  for (size_t i = 0; i < specials.size(); ++i) {
    const std::string token = specials[i][0] == '<' ? specials[i] : "<|" + specials[i] + "|>";
    json += std::string(i == 0 ? "" : ",") + R"({"id":)" + std::to_string(256 + i) +
            R"(,"content":")" + token + R"(","single_word":false,"lstrip":false,)" +
            R"("rstrip":false,"normalized":false,"special":true})";
  }
  return Tokenizer::parse(json + "]}", "byte tokenizer");
}

// With Harmony's special tokens, in an order that no other vocabulary has.
inline const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer =
      make_byte_tokenizer({"return", "message", "endoftext", "start", "call", "end", "channel",
                           "reserved", "constrain"});
  return tokenizer;
}

// One line a message: its part, its header and its text.
inline std::string trace(const std::vector<HarmonyEvent>& events) {
  std::string out;
  for (const HarmonyEvent& event : events) {
    switch (event.kind) {
      case HarmonyEvent::Kind::kBegin:
        out += event.part == ChatPart::kReasoning ? "reasoning"
               : event.part == ChatPart::kContent ? "content"
                                                  : "call " + event.function;
        out += " [" + event.text + "] ";
        break;
      case HarmonyEvent::Kind::kText:
        out += event.text;
        break;
      case HarmonyEvent::Kind::kEnd:
        out += "\n";
        break;
      case HarmonyEvent::Kind::kStray:
        out += "stray [" + event.text + "]\n";
        break;
    }
  }
  return out;
}

// Any ids at all: CHECKs what HarmonyParser promises. Every n-th id goes to a copy too, which then
// goes on.
inline void check_parse(const Harmony& harmony, const HarmonyStart& start,
                        const std::vector<int32_t>& ids, int copy_every = 1) {
  const HarmonyIds& special = harmony.ids();
  HarmonyParser parser(harmony, start);
  Detokenizer plain(harmony.tokenizer());
  std::vector<HarmonyEvent> events;
  std::string text;  // of all ids that are not special
  int step = 0;
  for (const int32_t id : ids) {
    std::vector<HarmonyEvent> now, now_of_copy;
    if (++step % copy_every == 0) {
      HarmonyParser copy = parser;
      copy.push(id, now_of_copy);
      parser.push(id, now);
      CHECK(trace(now_of_copy) == trace(now));
      parser = copy;
    } else {
      parser.push(id, now);
    }
    std::move(now.begin(), now.end(), std::back_inserter(events));
    const bool marks = id == special.start || id == special.end || id == special.message ||
                       id == special.channel || id == special.constrain || id == special.call ||
                       id == special.stop;
    if (marks) {
      text += plain.flush();
    } else if (!harmony.tokenizer().is_special(id)) {
      text += plain.push(id);
    }
  }
  parser.finish(events);
  text += plain.flush();
  std::string joined;
  bool open = false;
  ChatPart part = ChatPart::kContent;
  for (const HarmonyEvent& event : events) {
    joined += event.text;
    CHECK(utf8::valid_prefix(event.text) == event.text.size());
    const bool inside =
        event.kind == HarmonyEvent::Kind::kText || event.kind == HarmonyEvent::Kind::kEnd;
    CHECK(open == inside);
    CHECK(!inside || event.part == part);
    CHECK(event.kind != HarmonyEvent::Kind::kText || !event.text.empty());
    CHECK(event.kind != HarmonyEvent::Kind::kBegin ||
          (event.part == ChatPart::kToolCall) == !event.function.empty());
    if (event.kind == HarmonyEvent::Kind::kBegin) part = event.part;
    open = event.kind == HarmonyEvent::Kind::kBegin || event.kind == HarmonyEvent::Kind::kText;
  }
  CHECK(!open);
  CHECK(joined == text);
  CHECK(parser.counts().malformed <= static_cast<int64_t>(ids.size()));
  CHECK(parser.counts().reasoning_tokens <= static_cast<int64_t>(ids.size()));
}

// Where an answer may start: "0" to "3".
inline HarmonyStart start_of(char c) {
  HarmonyStart start{.in_content = c % 4 != 0, .header = {}};
  start.header.author = "assistant";
  start.header.channel = c % 4 == 1 ? "final" : c % 4 == 2 ? "analysis" : "commentary";
  if (c % 4 == 3) start.header.recipient = "functions.f";
  return start;
}

}  // namespace nibble
