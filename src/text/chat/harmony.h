// Harmony, the message format of gpt-oss, in token space.
//
//   <|start|> AUTHOR [" to=" RECIPIENT] [<|channel|> CHANNEL] [" " TYPE] <|message|> CONTENT END
//
// END is <|call|> after an assistant's call, <|return|> where the model is done, else <|end|>. Text
// is always encoded as text: a user who spells "<|start|>" gets six ordinary tokens. The special
// tokens are looked up by name, so any vocabulary that has them will do.
// Source: github.com/openai/harmony docs/format.md and the openai-harmony package 0.0.8.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat/chat.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble {

// What stands between <|start|> and <|message|>; empty fields are absent.
struct HarmonyHeader {
  std::string author = {};        // "assistant", "user:ann", "functions.f"
  std::string recipient = {};     // "functions.f", "assistant"
  std::string channel = {};       // "analysis", "commentary", "final"
  std::string content_type = {};  // "json"; "<|constrain|>json" with that token in front
};

struct HarmonyMessage {
  HarmonyHeader header = {};
  std::string content = {};
};

// Where the model's first id falls: behind "<|start|>assistant", or inside a message whose header
// the prompt has written.
struct HarmonyStart {
  bool in_content = false;
  HarmonyHeader header = {};  // with in_content
};

struct ChatPrompt {
  std::vector<int32_t> ids;
  HarmonyStart start = {};
  bool in_reasoning = false;  // of templates: the prompt's end has opened the reasoning
};

// Ids of the special tokens.
struct HarmonyIds {
  int32_t start, end, message, channel, constrain, call, stop;  // stop: <|return|>
};

class Harmony {
 public:
  // Throws Error(kUnsupported) naming the special tokens that the vocabulary lacks.
  explicit Harmony(const Tokenizer& tokenizer);
  static bool fits(const Tokenizer& tokenizer);

  // The whole prompt of a chat, up to and with "<|start|>assistant" (or the prefill that the
  // options ask for). A failure is a text for the caller, HTTP 400.
  //  - A system message is always there, made of the options.
  //  - A first message of role system or developer becomes the developer's "# Instructions", later
  //    ones developer messages; empty ones are none. Tools are left out under tool_choice none.
  //  - Analysis before the last final message is dropped; behind it (between tool calls) it stays.
  //  - tool_choice naming a function starts the answer inside that call.
  Result<ChatPrompt> render(const Chat& chat) const;

  // Messages just as given, each with its END.
  std::vector<int32_t> render(std::span<const HarmonyMessage> messages) const;

  // <|return|> and <|call|>; never <|end|>, behind which the final message follows the analysis.
  std::vector<int32_t> stop_ids() const { return {ids_.stop, ids_.call}; }

  const HarmonyIds& ids() const { return ids_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  void append_text(std::string_view text, std::vector<int32_t>& ids) const;
  // All of the message but its END.
  void append_open(const HarmonyMessage& message, std::vector<int32_t>& ids) const;

  Tokenizer tokenizer_;
  HarmonyIds ids_;
};

// A message of the model's is, by its recipient, then by its channel:
//   kReasoning  analysis
//   kContent    final, commentary to nobody, unknown channels, calls to tools that nobody runs
//   kToolCall   to a function
struct HarmonyEvent {
  // kBegin: the text is that of the header as it stood, special tokens left out. kStray: of a
  // header with no message behind it, cut off by the end of the sequence, or empty.
  using Kind = ChatEvent::Kind;
  Kind kind;
  ChatPart part = ChatPart::kContent;  // kBegin, kText, kEnd
  std::string text = {};
  HarmonyHeader header = {};  // kBegin
  std::string function = {};  // kBegin of a kToolCall: its name, without "functions."
};

struct HarmonyCounts {
  int64_t reasoning_tokens = 0;  // text tokens of analysis messages
  int64_t malformed = 0;         // messages that needed any repair: a health metric of the model
};

// A header as it comes: its text, and where in it the special tokens stand.
struct HarmonyHeaderText {
  struct Mark {
    size_t at;     // byte of the text
    bool channel;  // <|channel|>; else <|constrain|>
  };
  std::string text;
  std::vector<Mark> marks;
  bool author_given = false;  // the author's name stands before the text
};

// Follows the model's ids. Total: every sequence of ids gives events, and joining the texts of all
// events in order gives the text of all ids that are not special tokens (bytes that are not UTF-8
// become U+FFFD, before each special token too). Begin and End alternate. What repairs there are is
// listed in harmony_parser.cc. A value: copy it to be able to go back.
class HarmonyParser {
 public:
  // `functions`: names of the caller's tools; what goes to any other name is content. Where it is
  // not said, a call is what goes to a name that is no tool of the model's makers (python, browser,
  // container).
  explicit HarmonyParser(const Harmony& harmony, const HarmonyStart& start = {},
                         std::optional<std::vector<std::string>> functions = {});

  // The next id, special or not, known or not. Events are appended.
  void push(int32_t id, std::vector<HarmonyEvent>& events);
  // No more ids come: closes what is open.
  void finish(std::vector<HarmonyEvent>& events);

  const HarmonyCounts& counts() const { return counts_; }

 private:
  enum class State { kBetween, kHeader, kContent };

  void enter(std::vector<HarmonyEvent>& events);
  void flush(std::vector<HarmonyEvent>& events);
  void push_mark(int32_t id, std::vector<HarmonyEvent>& events);
  void open_header(bool author_given);
  void add_header_text(const std::string& text, std::vector<HarmonyEvent>& events);
  void begin(HarmonyHeader header, std::string text, std::vector<HarmonyEvent>& events);
  void begin_cut_header(std::vector<HarmonyEvent>& events);
  void close_header(std::vector<HarmonyEvent>& events);
  void add_stray(std::vector<HarmonyEvent>& events);
  void add_text(std::string text, std::vector<HarmonyEvent>& events);
  void end(std::vector<HarmonyEvent>& events);
  void repair();
  std::string called_function(const HarmonyHeader& header) const;

  HarmonyIds ids_;
  Tokenizer tokenizer_;
  std::shared_ptr<const std::vector<std::string>> functions_;  // null: not said
  HarmonyStart start_;
  Detokenizer text_;
  State state_ = State::kHeader;
  HarmonyHeaderText header_;            // in kHeader
  ChatPart part_ = ChatPart::kContent;  // in kContent
  bool flawed_ = false;                 // the message at hand is counted as malformed
  HarmonyCounts counts_;
};

}  // namespace nibble
