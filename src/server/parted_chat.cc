#include "server/parted_chat.h"

namespace nibble::server {

std::string PartedChat::begin(Part part) {
  std::string events = end();
  part.index = parts_.size();
  parts_.push_back(std::move(part));
  is_open_ = true;
  return events + on_begin(parts_.back());
}

std::string PartedChat::enter(Kind kind) {
  if (is_open_ && parts_.back().kind == kind) return "";
  return begin({.kind = kind});
}

std::string PartedChat::add(const std::string& piece) {
  parts_.back().text += piece;
  return on_text(parts_.back(), piece);
}

std::string PartedChat::end() {
  if (!std::exchange(is_open_, false)) return "";
  return on_end(parts_.back());
}

void PartedChat::on_step(size_t, const Step& step) {
  std::string events;
  if (!std::exchange(choice().opened, true)) events += on_start();
  if (step.is_content) on_content_token(step.output);
  const ChatDelta& delta = step.delta;
  if (!delta.reasoning.empty() && request().include_reasoning) {
    events += enter(Kind::kReasoning);
    events += add(delta.reasoning);
  }
  if (!delta.content.empty()) {
    events += enter(Kind::kText);
    events += add(delta.content);
  }
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (!call.id.empty()) {
      events += begin({.kind = Kind::kCall, .call_id = call.id, .call_name = call.name});
    }
    if (!call.arguments.empty()) events += add(call.arguments);
  }
  if (choice().finish != FinishReason::kNone) events += end();
  if (request().stream) stream(std::move(events));
}

void PartedChat::on_all_ended() {
  if (request().stream) return end_stream(on_finish());
  reply().send({.body = to_text(whole())});
}

}  // namespace nibble::server
