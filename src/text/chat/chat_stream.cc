#include "text/chat/chat_stream.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace nibble {
namespace {

using Kind = ChatEvent::Kind;

constexpr std::string_view kFunctions = "functions.";

HeaderRules rules_of(const ChatStreamOptions& options) {
  HeaderRules rules{.recipients = {}, .must = options.must};
  for (const std::string& name : options.functions) {
    rules.recipients.push_back(std::string(kFunctions) + name);
  }
  return rules;
}

}  // namespace

void ChatDelta::append(ChatDelta next) {
  reasoning += next.reasoning;
  content += next.content;
  tool_calls.insert(tool_calls.end(), next.tool_calls.begin(), next.tool_calls.end());
}

ChatStream::ChatStream(const ChatFormat& format, const ChatStreamOptions& options)
    : parser_(format.parser(options)),
      fresh_stops_(options.stop),
      stops_(fresh_stops_),
      call_id_seed_(options.call_id_seed),
      named_call_(options.named_call || !options.start.header.recipient.empty()) {}

ChatDelta ChatStream::push(int32_t id) {
  ChatDelta delta;
  parser_->push(id, events_);
  add_events(delta);
  return delta;
}

ChatDelta ChatStream::finish() {
  ChatDelta delta;
  parser_->finish(events_);
  add_events(delta);
  return delta;
}

void ChatStream::add_events(ChatDelta& delta) {
  for (const ChatEvent& event : events_) {
    if (stopped()) break;
    switch (event.kind) {
      case Kind::kBegin:
        add_begin(event, delta);
        break;
      case Kind::kText:
        add_text(event, delta);
        break;
      case Kind::kEnd:
        part_.reset();
        if (event.part != ChatPart::kContent) break;
        add_content(stops_.flush(), delta);
        stops_ = fresh_stops_;  // a stop string does not reach over two messages
        break;
      case Kind::kStray:
        break;
    }
  }
  events_.clear();
}

void ChatStream::add_begin(const ChatEvent& event, ChatDelta& delta) {
  part_ = event.part;
  separate_ =
      event.part == ChatPart::kReasoning ? !reply_.reasoning.empty() : !reply_.content.empty();
  if (event.part != ChatPart::kToolCall) return;
  const size_t index = reply_.tool_calls.size();
  reply_.tool_calls.push_back({.id = "call_" + call_id_seed_ + "_" + std::to_string(index),
                               .name = event.function,
                               .arguments = ""});
  delta.tool_calls.push_back(
      {.index = index, .id = reply_.tool_calls.back().id, .name = event.function});
}

void ChatStream::add_text(const ChatEvent& event, ChatDelta& delta) {
  if (event.part == ChatPart::kContent) return add_content(stops_.push(event.text), delta);
  if (event.part == ChatPart::kReasoning) {
    const std::string text = (separate_ ? "\n" : "") + event.text;
    separate_ = false;
    delta.reasoning += text;
    reply_.reasoning += text;
    return;
  }
  const size_t index = reply_.tool_calls.size() - 1;
  reply_.tool_calls[index].arguments += event.text;
  if (delta.tool_calls.empty() || delta.tool_calls.back().index != index) {
    delta.tool_calls.push_back({.index = index});
  }
  delta.tool_calls.back().arguments += event.text;
}

void ChatStream::add_content(std::string text, ChatDelta& delta) {
  if (text.empty()) return;
  if (separate_) text.insert(0, "\n");
  separate_ = false;
  delta.content += text;
  reply_.content += text;
}

std::string_view ChatStream::finish_reason(bool out_of_tokens) const {
  if (stopped()) return "stop";
  if (out_of_tokens) return "length";
  return reply_.tool_calls.empty() || named_call_ ? "stop" : "tool_calls";
}

ChatWatcher::ChatWatcher(const Harmony& harmony, const ChatStreamOptions& options)
    : fresh_stops_(options.stop),
      ids_(harmony.ids()),
      content_(options.content),
      arguments_(options.arguments),
      stop_ids_(options.stop_ids),
      state_{.parser = HarmonyParser(harmony, options.start, options.functions),
             .stops = fresh_stops_,
             .headers = HeaderMask(harmony, options.start, rules_of(options))} {
  if (options.must != HeaderRules::Must::kNothing) {
    const auto& tokenizer = harmony.tokenizer();
    std::copy_if(stop_ids_.begin(), stop_ids_.end(), std::back_inserter(early_stops_),
                 [&](int32_t id) { return !tokenizer.is_special(id); });
  }
  if (!options.start.in_content) return;
  const HarmonyHeader& header = options.start.header;
  const bool is_call = header.recipient.starts_with(kFunctions);
  start_run(is_call ? ChatPart::kToolCall : ChatPart::kContent, header,
            is_call ? header.recipient.substr(kFunctions.size()) : "");
  state_.entered = true;
}

void ChatWatcher::start_run(ChatPart part, const HarmonyHeader& header,
                            const std::string& function) {
  state_.run.reset();
  state_.run_length = 0;
  const auto arguments = arguments_.find(function);
  if (part == ChatPart::kToolCall && arguments != arguments_.end()) {
    state_.run = run_of(arguments->second, ids_.call);
  } else if (part == ChatPart::kContent && header.channel == "final" && content_) {
    state_.run = run_of(*content_, ids_.stop);
  }
  if (state_.run && mask_changed_) state_.run->on_mask(mask_changed_);
}

MaskState ChatWatcher::mask_state() const {
  return state_.run ? state_.run->mask_state() : MaskState::kReady;
}

std::string ChatWatcher::fault() const { return state_.run ? state_.run->fault() : ""; }

void ChatWatcher::on_mask(std::function<void()> changed) {
  mask_changed_ = std::move(changed);
  if (state_.run) state_.run->on_mask(mask_changed_);
}

std::shared_ptr<GrammarRun> ChatWatcher::run_of(const Grammar& grammar, int32_t end_id) const {
  std::vector<int32_t> end_ids = stop_ids_;
  end_ids.push_back(end_id);
  return std::make_shared<GrammarRun>(grammar, end_ids);
}

bool ChatWatcher::mask(std::span<uint32_t> bits) {
  if (state_.lost) return std::fill(bits.begin(), bits.end(), 0), true;
  if (state_.run) return state_.run->mask(bits), true;
  const bool masked = state_.headers.mask(bits);
  for (const int32_t id : early_stops_) {  // what is asked for has to come yet
    const auto word = static_cast<size_t>(id) / 32;
    if (word < bits.size()) bits[word] &= ~(uint32_t{1} << (id % 32));
  }
  return masked || !early_stops_.empty();
}

Watch ChatWatcher::accept(int32_t id) {
  before_.push_back(state_);
  if (before_.size() > kMaxRollback) before_.pop_front();
  state_.headers.accept(id);
  if (state_.run && !state_.run->accept(id)) state_.lost = true;
  if (state_.run) state_.run_length = state_.run->num_accepted();
  std::vector<HarmonyEvent> events;
  state_.parser.push(id, events);
  for (const HarmonyEvent& event : events) {
    if (event.kind == HarmonyEvent::Kind::kBegin) state_.part = 1 + static_cast<int>(event.part);
    if (event.kind == HarmonyEvent::Kind::kEnd) state_.part = 0;
    if (event.kind == HarmonyEvent::Kind::kBegin && !std::exchange(state_.entered, false)) {
      start_run(event.part, event.header, event.function);
    }
    if (event.kind == HarmonyEvent::Kind::kEnd) state_.run.reset();
    if (event.part != ChatPart::kContent) continue;
    if (event.kind == HarmonyEvent::Kind::kEnd) state_.stops = fresh_stops_;
    if (event.kind == HarmonyEvent::Kind::kText) state_.stops.push(event.text);
    if (state_.stops.stopped()) return Watch::kStop;
  }
  return Watch::kGoOn;
}

void ChatWatcher::rollback(int n) {
  if (n == 0) return;
  CHECK(n > 0 && static_cast<size_t>(n) <= before_.size());
  state_ = before_[before_.size() - n];
  before_.resize(before_.size() - n, state_);
  if (state_.run) state_.run->rollback_to(state_.run_length);
}

}  // namespace nibble
