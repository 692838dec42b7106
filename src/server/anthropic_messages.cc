#include "server/anthropic_messages.h"

#include "server/sse.h"

namespace nibble::server {
namespace {

// The arguments of a call as an object; a model without a grammar might have written none.
Json input_of(const std::string& arguments) {
  Json input = Json::parse(arguments, nullptr, /*allow_exceptions=*/false);
  return input.is_object() ? input : Json::object();
}

}  // namespace

AnthropicMessages::AnthropicMessages(const GenerationContext& context, PreparedChat chat,
                                     std::shared_ptr<HttpReply> reply)
    : PartedChat(context, std::move(chat), std::move(reply)), id_(random_id("msg_")) {}

// Tokens found in the cache are not among the input tokens, as Anthropic counts.
Json AnthropicMessages::usage_json() const {
  const Usage now = usage();
  return {{"input_tokens", now.prompt_tokens - now.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", now.cached_tokens},
          {"output_tokens", now.completion_tokens}};
}

Json AnthropicMessages::message(Json content) const {
  return {{"id", id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model().names.front()},
          {"content", std::move(content)},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage", usage_json()}};
}

Json AnthropicMessages::stop_json() {
  Json json = {{"stop_reason", "end_turn"}, {"stop_sequence", nullptr}};
  const ChatStream& stream = choice().stream;
  if (stream.stopped()) {
    json["stop_reason"] = "stop_sequence";
    json["stop_sequence"] = request().stop[static_cast<size_t>(stream.stopped_by())];
  } else if (choice().finish == FinishReason::kLength) {
    json["stop_reason"] = "max_tokens";
  } else if (!stream.reply().tool_calls.empty()) {
    json["stop_reason"] = "tool_use";
  }
  return json;
}

std::string AnthropicMessages::on_start() {
  return sse_named_event({{"type", "message_start"}, {"message", message(Json::array())}}) +
         sse_named_event({{"type", "ping"}});
}

std::string AnthropicMessages::on_begin(Part& part) {
  Json block = {{"type", "text"}, {"text", ""}};
  if (part.kind == Kind::kReasoning) {
    block = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  } else if (part.kind == Kind::kCall) {
    block = {{"type", "tool_use"},
             {"id", part.call_id},
             {"name", part.call_name},
             {"input", Json::object()}};
  }
  return sse_named_event(
      {{"type", "content_block_start"}, {"index", part.index}, {"content_block", block}});
}

std::string AnthropicMessages::on_text(Part& part, const std::string& piece) {
  Json delta = {{"type", "text_delta"}, {"text", piece}};
  if (part.kind == Kind::kReasoning) delta = {{"type", "thinking_delta"}, {"thinking", piece}};
  if (part.kind == Kind::kCall) delta = {{"type", "input_json_delta"}, {"partial_json", piece}};
  return sse_named_event(
      {{"type", "content_block_delta"}, {"index", part.index}, {"delta", delta}});
}

std::string AnthropicMessages::on_end(Part& part) {
  std::string events;
  if (part.kind == Kind::kReasoning) {  // what comes back with it is not checked
    events = sse_named_event({{"type", "content_block_delta"},
                              {"index", part.index},
                              {"delta", {{"type", "signature_delta"}, {"signature", id_}}}});
  }
  return events + sse_named_event({{"type", "content_block_stop"}, {"index", part.index}});
}

std::string AnthropicMessages::on_finish() {
  return sse_named_event(
             {{"type", "message_delta"}, {"delta", stop_json()}, {"usage", usage_json()}}) +
         sse_named_event({{"type", "message_stop"}});
}

Json AnthropicMessages::whole() {
  Json content = Json::array();
  for (const Part& part : parts()) {
    switch (part.kind) {
      case Kind::kReasoning:
        content.push_back({{"type", "thinking"}, {"thinking", part.text}, {"signature", id_}});
        break;
      case Kind::kText:
        content.push_back({{"type", "text"}, {"text", part.text}});
        break;
      case Kind::kCall:
        content.push_back({{"type", "tool_use"},
                           {"id", part.call_id},
                           {"name", part.call_name},
                           {"input", input_of(part.text)}});
        break;
    }
  }
  Json json = message(std::move(content));
  json.update(stop_json());
  return json;
}

std::string AnthropicMessages::error_event(const ApiError& error) const {
  return "event: error\ndata: " + api_error_body(error, style_) + "\n\n";
}

}  // namespace nibble::server
