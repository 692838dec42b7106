#include "text/chat/template_answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace nibble {
namespace {

using Kind = ChatEvent::Kind;

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kPython = "<|python_tag|>";
constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";
constexpr std::string_view kBlanks = " \n\r\t";

// Bytes at the end of `text` that may be the beginning of `mark`.
size_t begun(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

size_t without_blanks(std::string_view text) {
  const size_t last = text.find_last_not_of(kBlanks);
  return last == text.npos ? 0 : last + 1;
}

// `text` could go on as `mark`, or has it in front.
bool may_start(std::string_view text, std::string_view mark) {
  return text.starts_with(mark) || mark.starts_with(text);
}

}  // namespace

TemplateAnswer::TemplateAnswer(const Tokenizer& tokenizer, AnswerMarkup markup,
                               const ChatStreamOptions& options)
    : tokenizer_(tokenizer),
      markup_(markup),
      tools_(options.tools),
      has_form_(options.must == HeaderRules::Must::kAnswer),
      text_(tokenizer) {
  if (!tools_ || tools_->empty()) markup_.tools = ToolFormat::kNone;
  if (options.in_reasoning) {
    state_ = State::kReasoning;
    skip_newlines_ = true;
  } else if (!markup_.think || options.start.in_content) {
    state_ = State::kContent;
  }
}

void TemplateAnswer::push(int32_t id, std::vector<ChatEvent>& events) {
  if (state_ == State::kReasoning) ++reasoning_tokens_;
  const std::string_view bytes = tokenizer_.token_bytes(id);
  if (newlines_left_-- > 0 && (bytes == "\n" || bytes == "\n\n")) return;
  newlines_left_ = 0;
  if (!tokenizer_.is_special(id)) {
    held_ += text_.push(id);
  } else {
    held_ += text_.flush();
    const std::string_view mark = tokenizer_.token_bytes(id);
    const bool known =
        mark == kPython || mark == kCall || mark == kCallEnd || mark == kThink || mark == kThinkEnd;
    if (known) held_ += mark;
  }
  advance(false, events);
}

void TemplateAnswer::finish(std::vector<ChatEvent>& events) {
  held_ += text_.flush();
  advance(true, events);
  close(events);
}

void TemplateAnswer::advance(bool last, std::vector<ChatEvent>& events) {
  while (step(last, events)) {
  }
}

bool TemplateAnswer::step(bool last, std::vector<ChatEvent>& events) {
  switch (state_) {
    case State::kStart:
      return start(last);
    case State::kReasoning:
      return reasoning(last, events);
    case State::kContent:
      return content(last, events);
    case State::kJsonCall:
      return json_call(last, events);
    case State::kBehindCall:
      return behind_call(last);
    case State::kXmlCall:
      return xml_call(last, events);
    case State::kXmlBody:
      return xml_body(last, events);
  }
  return false;
}

bool TemplateAnswer::start(bool last) {
  const size_t first = std::min(held_.find_first_not_of(kBlanks), held_.size());
  const std::string_view text = std::string_view(held_).substr(first);
  if (text.starts_with(kThink)) {
    held_.erase(0, first + kThink.size());
    state_ = State::kReasoning;
    skip_newlines_ = true;
    return true;
  }
  if (!last && may_start(text, kThink)) return false;
  state_ = State::kContent;
  return true;
}

// Tells the text up to `mark`, less the blanks before it, and takes the mark. False: no mark yet;
// what may belong to one is held.
bool TemplateAnswer::until(std::string_view mark, ChatPart part, bool last,
                           std::vector<ChatEvent>& events) {
  if (skip_newlines_) {
    const size_t newlines = std::min(held_.find_first_not_of("\r\n"), held_.size());
    held_.erase(0, newlines);
    if (held_.empty()) return false;
    skip_newlines_ = false;
  }
  const size_t at = held_.find(mark);
  if (at != held_.npos) {
    emit(part, held_.substr(0, without_blanks(std::string_view(held_).substr(0, at))), events);
    close(events);
    held_.erase(0, at + mark.size());
    return true;
  }
  size_t tell = held_.size();
  if (!last) {
    tell -= begun(held_, mark);
    tell = without_blanks(std::string_view(held_).substr(0, tell));
  }
  emit(part, held_.substr(0, tell), events);
  held_.erase(0, tell);
  return false;
}

bool TemplateAnswer::reasoning(bool last, std::vector<ChatEvent>& events) {
  if (!until(kThinkEnd, ChatPart::kReasoning, last, events)) return false;
  state_ = State::kContent;
  if (has_form_) {
    held_.erase(0, std::min(held_.find_first_not_of("\r\n"), held_.size()));
    newlines_left_ = kNewlinesBeforeForm;
  } else {
    skip_newlines_ = true;
  }
  return true;
}

bool TemplateAnswer::content(bool last, std::vector<ChatEvent>& events) {
  if (markup_.tools == ToolFormat::kLlama3Json && !plain_) return llama_content(last, events);
  if (markup_.tools == ToolFormat::kNone || plain_) {
    if (skip_newlines_) {
      held_.erase(0, std::min(held_.find_first_not_of("\r\n"), held_.size()));
      skip_newlines_ = held_.empty();
    }
    emit(ChatPart::kContent, std::exchange(held_, {}), events);
    return false;
  }
  if (!until(kCall, ChatPart::kContent, last, events)) return false;
  raw_ = kCall;
  in_call_ = false;
  if (markup_.tools == ToolFormat::kHermes) {
    scanner_.emplace(false);
    state_ = State::kJsonCall;
  } else {
    state_ = State::kXmlCall;
  }
  return true;
}

// A call is all of the content, or a row of them.
bool TemplateAnswer::llama_content(bool last, std::vector<ChatEvent>& events) {
  size_t first = held_.find_first_not_of(" \n\r\t;");
  if (first == held_.npos) first = held_.size();
  std::string_view text = std::string_view(held_).substr(first);
  const bool tagged = text.starts_with(kPython);
  if (!tagged && !last && (text.empty() || kPython.starts_with(text))) return false;
  if (tagged) first += kPython.size();
  text = std::string_view(held_).substr(first);
  const size_t brace = std::min(text.find_first_not_of(kBlanks), text.size());
  if (brace == text.size() && !last) return false;
  if (text.substr(brace).starts_with('{')) {
    raw_ = held_.substr(0, first);
    held_.erase(0, first);
    in_call_ = false;
    scanner_.emplace(true);
    state_ = State::kJsonCall;
    return true;
  }
  if (held_.empty()) return false;
  if (tagged) held_.erase(0, first);
  plain_ = true;
  (void)events;
  return true;
}

void TemplateAnswer::add_call_text(std::vector<ChatEvent>& events) {
  if (!scanner_->is_call()) return;
  if (!in_call_) {
    close(events);
    emit(ChatPart::kToolCall, "", events, scanner_->name());
    in_call_ = true;
  }
  emit(ChatPart::kToolCall, scanner_->take_arguments(), events);
}

// What began as a call is none: it is content, as it came.
void TemplateAnswer::back_to_content(std::vector<ChatEvent>& events) {
  close(events);
  scanner_.reset();
  if (!in_call_) held_.insert(0, raw_);
  state_ = State::kContent;
  // Its own mark is not taken for one again.
  const size_t mark = !in_call_ && held_.starts_with(kCall) ? kCall.size() : 0;
  in_call_ = false;
  raw_.clear();
  emit(ChatPart::kContent, held_.substr(0, mark), events);
  held_.erase(0, mark);
  if (markup_.tools == ToolFormat::kLlama3Json) plain_ = true;
}

bool TemplateAnswer::json_call(bool last, std::vector<ChatEvent>& events) {
  auto state = CallScanner::State::kOpen;
  size_t used = 0;
  while (used < held_.size() && state == CallScanner::State::kOpen)
    state = scanner_->push(held_[used++]);
  if (state == CallScanner::State::kBad) --used;  // the character begins what is no part of a call
  raw_ += held_.substr(0, used);
  held_.erase(0, used);
  if (scanner_->is_call() && tool_of(scanner_->name()) == nullptr)
    state = CallScanner::State::kBad;
  else
    add_call_text(events);
  if (state == CallScanner::State::kBad || (state == CallScanner::State::kOpen && last)) {
    if (last && held_.empty() && in_call_) return false;  // cut off: what there is has been told
    back_to_content(events);
    return true;
  }
  if (state == CallScanner::State::kOpen) return false;
  close(events);
  scanner_.reset();
  raw_.clear();
  in_call_ = false;
  state_ = markup_.tools == ToolFormat::kHermes ? State::kBehindCall : State::kContent;
  return true;
}

// Up to the end of the mark: blanks, and what some models write too much.
bool TemplateAnswer::behind_call(bool last) {
  const size_t first = std::min(held_.find_first_not_of(kBlanks), held_.size());
  const std::string_view text = std::string_view(held_).substr(first);
  if (text.starts_with(kCallEnd)) {
    held_.erase(0, first + kCallEnd.size());
  } else if (!last && kCallEnd.starts_with(text)) {
    return false;
  } else {
    held_.erase(0, first);
  }
  skip_newlines_ = true;
  state_ = State::kContent;
  return true;
}

bool TemplateAnswer::xml_call(bool last, std::vector<ChatEvent>& events) {
  const size_t first = std::min(held_.find_first_not_of(kBlanks), held_.size());
  const std::string_view text = std::string_view(held_).substr(first);
  if (text.starts_with(kFunction)) {
    const size_t end = text.find('>');
    if (end != text.npos) function_ = text.substr(kFunction.size(), end - kFunction.size());
    if (end != text.npos && tool_of(function_) != nullptr) {
      held_.erase(0, first + end + 1);
      close(events);
      emit(ChatPart::kToolCall, "", events, function_);
      emit(ChatPart::kToolCall, "{", events);
      in_call_ = true;
      num_parameters_ = 0;
      state_ = State::kXmlBody;
      return true;
    }
    if (!last && end == text.npos) return false;
  } else if (!last && kFunction.starts_with(text)) {
    return false;
  }
  back_to_content(events);
  return true;
}

bool TemplateAnswer::xml_body(bool last, std::vector<ChatEvent>& events) {
  held_.erase(0, std::min(held_.find_first_not_of(kBlanks), held_.size()));
  const std::string_view text = held_;
  if (text.starts_with(kParameter)) {
    if (!last && text.find(kParameterEnd) == text.npos) return false;  // once it is whole
    const size_t size = parameter_name_size(tool_of(function_), text.substr(kParameter.size()));
    if (size != text.npos) {
      const size_t name_end = kParameter.size() + size;
      const std::string name(text.substr(kParameter.size(), size));
      const std::string_view rest = text.substr(name_end + 1);
      size_t end = rest.find(kParameterEnd);
      if (end == rest.npos && last) {  // it has none
        end = std::min(rest.find(kFunctionEnd), rest.find("\n" + std::string(kParameter)));
      }
      std::string value(rest.substr(0, end));
      if (value.starts_with('\n')) value.erase(0, 1);
      if (value.ends_with('\n')) value.pop_back();
      const bool closed = end != rest.npos && rest.substr(end).starts_with(kParameterEnd);
      const size_t used = name_end + 1 + std::min(end, rest.size());
      held_.erase(0, used + (closed ? kParameterEnd.size() : 0));
      const std::string key =
          nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      emit(ChatPart::kToolCall,
           (num_parameters_++ > 0 ? ", " : "") + key + ": " +
               typed_parameter(tool_of(function_), name, std::move(value)),
           events);
      return true;
    }
  } else if (!last && !text.starts_with(kFunctionEnd) &&
             (kParameter.starts_with(text) || kFunctionEnd.starts_with(text))) {
    return false;
  }
  // The end, or something that is no part of a call.
  if (text.starts_with(kFunctionEnd)) held_.erase(0, kFunctionEnd.size());
  emit(ChatPart::kToolCall, "}", events);
  close(events);
  in_call_ = false;
  raw_.clear();
  state_ = State::kBehindCall;
  return true;
}

void TemplateAnswer::emit(ChatPart part, std::string text, std::vector<ChatEvent>& events,
                          const std::string& function) {
  if (text.empty() && function.empty()) return;
  if (open_ != part || !function.empty()) {
    close(events);
    events.push_back({.kind = Kind::kBegin, .part = part, .function = function});
    open_ = part;
  }
  if (!text.empty()) events.push_back({.kind = Kind::kText, .part = part, .text = std::move(text)});
}

void TemplateAnswer::close(std::vector<ChatEvent>& events) {
  if (!open_) return;
  events.push_back({.kind = Kind::kEnd, .part = *open_});
  open_.reset();
}

const FunctionTool* TemplateAnswer::tool_of(const std::string& name) const {
  if (!tools_) return nullptr;
  const auto it = std::find_if(tools_->begin(), tools_->end(),
                               [&](const FunctionTool& tool) { return tool.name == name; });
  return it == tools_->end() ? nullptr : &*it;
}

}  // namespace nibble
