// For tests of Harmony: a vocabulary of single bytes with ids of its own, and events as text.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "text/chat/harmony.h"

namespace nibble {

// Ids 0..255 are the bytes; then come special tokens of these names.
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
    json += std::string(i == 0 ? "" : ",") + R"({"id":)" + std::to_string(256 + i) +
            R"(,"content":"<|)" + specials[i] + R"(|>","single_word":false,"lstrip":false,)" +
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
        out += event.part == HarmonyPart::kReasoning ? "reasoning"
               : event.part == HarmonyPart::kContent ? "content"
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

}  // namespace nibble
