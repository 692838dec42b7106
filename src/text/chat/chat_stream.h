// From the model's ids to what an OpenAI-style answer is made of: reasoning, content, tool calls
// and the reason for the end, as plain values, piece by piece or whole. No JSON, no HTTP, no locks:
// one object an answer, used by one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/token_watcher.h"
#include "text/chat/chat.h"
#include "text/chat/chat_format.h"
#include "text/chat/harmony.h"
#include "text/chat/header_mask.h"
#include "text/grammar/grammar.h"
#include "text/stop_strings.h"

namespace nibble {

struct ToolCallDelta {
  size_t index = 0;  // of the call in the answer, from 0
  // Of the delta that opens a call; empty in those that follow.
  std::string id = {};
  std::string name = {};
  std::string arguments = {};
};

// What one step adds. Usually at most one of the three is there.
struct ChatDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> tool_calls;

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
  void append(ChatDelta next);
};

struct ChatReply {
  std::string reasoning;
  std::string content;  // final messages and preambles, joined by newlines; empty: null in the API
  std::vector<ToolCall> tool_calls;
};

struct ChatStreamOptions {
  HarmonyStart start;                                      // of the ChatPrompt
  bool in_reasoning = false;                               // of the ChatPrompt
  std::shared_ptr<const std::vector<FunctionTool>> tools;  // that may be called; null: none
  std::vector<std::string> functions;  // that may be called: nothing else is a call
  StopStrings stop;                    // they end content, and look at nothing else

  // What ChatWatcher's mask sees to, beside well-formed headers.
  HeaderRules::Must must = HeaderRules::Must::kNothing;
  std::optional<Grammar> content;            // the final message is of this form
  std::map<std::string, Grammar> arguments;  // by function: so are its arguments
  std::optional<Grammar> answer;  // of templates: all behind the reasoning is of this form
  std::vector<int32_t> stop_ids;  // of the caller's: before and within a form only at its end
  std::vector<int32_t> end_ids;   // of the model: so do these, of templates

  bool named_call = false;  // tool_choice names the function

  // The n-th call's id is "call_" + this + "_" + n: unique if this is unique to the answer.
  std::string call_id_seed;
};

class ChatStream {
 public:
  ChatStream(const ChatFormat& format, const ChatStreamOptions& options);

  // The next id of the model, that which ended it (<|return|>, <|call|>) included.
  ChatDelta push(int32_t id);
  // No more ids: what was held back.
  ChatDelta finish();

  // A stop string has been found: what comes after it is ignored.
  bool stopped() const { return stops_.stopped(); }
  int stopped_by() const { return stops_.matched(); }  // its index; -1: none

  // What the ids at hand are part of: the open message's, or nothing (a header).
  std::optional<ChatPart> part() const { return part_; }

  // All deltas so far, joined.
  const ChatReply& reply() const { return reply_; }
  // "tool_calls", "length" (with `out_of_tokens`: max_tokens or the context was used up) or "stop".
  // A call that tool_choice forced by name ends with "stop", as with OpenAI.
  std::string_view finish_reason(bool out_of_tokens) const;
  int64_t reasoning_tokens() const { return parser_->reasoning_tokens(); }

 private:
  void add_events(ChatDelta& delta);
  void add_begin(const ChatEvent& event, ChatDelta& delta);
  void add_text(const ChatEvent& event, ChatDelta& delta);
  void add_content(std::string text, ChatDelta& delta);

  std::unique_ptr<AnswerParser> parser_;
  const StopStrings fresh_stops_;
  StopStrings stops_;
  std::string call_id_seed_;
  bool named_call_;
  bool separate_ = false;  // a newline goes before the next text of this part
  std::optional<ChatPart> part_;
  ChatReply reply_;
  std::vector<ChatEvent> events_;
};

// What the engine needs to know of a chat in Harmony while it samples. Ends a request as soon as
// its content holds a stop string; a ChatStream with the same options that is fed the same ids ends
// its content there. Masks headers that are not well-formed, those of calls to no function of the
// options, and what the options' constraints forbid.
class ChatWatcher : public TokenWatcher {
 public:
  ChatWatcher(const Harmony& harmony, const ChatStreamOptions& options);

  Watch accept(int32_t id) override;
  void rollback(int n) override;
  bool mask(std::span<uint32_t> bits) override;
  MaskState mask_state() const override;
  std::string fault() const override;
  int part() const override { return state_.part; }
  void on_mask(std::function<void()> changed) override;

 private:
  static constexpr size_t kMaxRollback = 64;  // accepted ids that can be taken back

  struct State {
    HarmonyParser parser;
    int part = 0;  // of a header; 1 + the ChatPart of a message
    StopStrings stops;
    HeaderMask headers;
    std::shared_ptr<GrammarRun> run;  // of the open message; shared by the states within it
    size_t run_length = 0;            // ids that it had accepted in this state
    bool entered = false;             // its run was started before the parser told of the message
    bool lost = false;                // an id came that was masked: nothing may follow
  };
  void start_run(ChatPart part, const HarmonyHeader& header, const std::string& function);
  std::shared_ptr<GrammarRun> run_of(const Grammar& grammar, int32_t end_id) const;

  const StopStrings fresh_stops_;
  const HarmonyIds ids_;
  const std::optional<Grammar> content_;
  const std::map<std::string, Grammar> arguments_;
  const std::vector<int32_t> stop_ids_;
  std::vector<int32_t> early_stops_;  // those that are text, where an answer or a call must come
  std::function<void()> mask_changed_;
  State state_;
  std::deque<State> before_;  // the states before the latest ids
};

}  // namespace nibble
