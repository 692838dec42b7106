// The answer of a model that speaks a template: reasoning between <think> and </think>, content,
// and calls in one of the tool formats.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/call_scanner.h"
#include "text/chat/chat_format.h"
#include "text/chat/chat_stream.h"
#include "text/chat/tool_format.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble {

// Tokens of newlines between the reasoning and content that has a form: not part of either.
inline constexpr int kNewlinesBeforeForm = 2;

// A value: copy it to be able to go back. Text that could still become markup is held back; text
// that turns out to be no call is content: nothing is lost but the markup, and blanks beside it.
class TemplateAnswer : public AnswerParser {
 public:
  // Nothing is a call but of the options' tools.
  TemplateAnswer(const Tokenizer& tokenizer, AnswerMarkup markup, const ChatStreamOptions& options);

  void push(int32_t id, std::vector<ChatEvent>& events) override;
  void finish(std::vector<ChatEvent>& events) override;
  int64_t reasoning_tokens() const override { return reasoning_tokens_; }

  bool in_reasoning() const { return state_ == State::kReasoning; }
  bool at_start() const { return state_ == State::kStart; }

 private:
  enum class State { kStart, kReasoning, kContent, kJsonCall, kBehindCall, kXmlCall, kXmlBody };

  void advance(bool last, std::vector<ChatEvent>& events);
  // One step; false: it waits for more text.
  bool step(bool last, std::vector<ChatEvent>& events);
  bool start(bool last);
  bool reasoning(bool last, std::vector<ChatEvent>& events);
  bool content(bool last, std::vector<ChatEvent>& events);
  bool llama_content(bool last, std::vector<ChatEvent>& events);
  bool json_call(bool last, std::vector<ChatEvent>& events);
  bool behind_call(bool last);
  bool xml_call(bool last, std::vector<ChatEvent>& events);
  bool xml_body(bool last, std::vector<ChatEvent>& events);

  bool until(std::string_view mark, ChatPart part, bool last, std::vector<ChatEvent>& events);
  void emit(ChatPart part, std::string text, std::vector<ChatEvent>& events,
            const std::string& function = {});
  void close(std::vector<ChatEvent>& events);
  void add_call_text(std::vector<ChatEvent>& events);
  void back_to_content(std::vector<ChatEvent>& events);
  const FunctionTool* tool_of(const std::string& name) const;

  Tokenizer tokenizer_;
  AnswerMarkup markup_;
  std::shared_ptr<const std::vector<FunctionTool>> tools_;  // null: none
  bool has_form_;          // content has one: newlines may be part of it
  int newlines_left_ = 0;  // tokens of them that may still come between the reasoning and the form
  Detokenizer text_;
  State state_ = State::kStart;
  std::string held_;  // not yet told
  std::optional<ChatPart> open_;
  bool skip_newlines_ = false;  // those that begin a part
  bool plain_ = false;          // llama3_json: what began as text goes on as text
  std::string raw_;             // of the call at hand, as it came
  std::optional<CallScanner> scanner_;
  bool in_call_ = false;  // its Begin has been told
  std::string function_;
  size_t num_parameters_ = 0;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace nibble
