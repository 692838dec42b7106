#include "server/openai_chat.h"

#include "server/openai_tokens.h"
#include "server/sse.h"

namespace nibble::server {
namespace {

Json call_json(const ToolCallDelta& call) {
  Json json = {{"index", call.index}};
  if (!call.id.empty()) {
    json["id"] = call.id;
    json["type"] = "function";
    json["function"] = {{"name", call.name}, {"arguments", call.arguments}};
  } else {
    json["function"] = {{"arguments", call.arguments}};
  }
  return json;
}

}  // namespace

OpenAiChat::OpenAiChat(const GenerationContext& context, PreparedChat chat,
                       std::shared_ptr<HttpReply> reply)
    : ChatGeneration(context, std::move(chat), std::move(reply)),
      id_(random_id("chatcmpl-")),
      pending_(choices().size()) {}

void OpenAiChat::on_step(size_t index, const Step& step) {
  if (request().return_token_ids && step.output.id >= 0) {
    pending_[index].ids.push_back(step.output.id);
  }
  if (request().sampling.logprobs >= 0 && step.is_content) {
    Json entry = token_with_top_json(*model().tokenizer, step.output);
    if (!request().stream) hold(held_bytes(entry));
    pending_[index].logprobs.push_back(std::move(entry));
  }
  if (request().stream) stream(chunks(choices()[index], index, step.delta));
}

// `finish` empty: more is to come.
Json OpenAiChat::chunk(size_t index, Json delta, const std::string& finish) {
  const bool is_first = delta.contains("role");
  Json choice = {{"index", index}, {"delta", std::move(delta)}};
  if (request().return_token_ids && !is_first) {
    choice["token_ids"] = std::exchange(pending_[index].ids, {});
  }
  if (request().sampling.logprobs >= 0) {
    Json& pending = pending_[index].logprobs;
    choice["logprobs"] = pending.empty() ? Json(nullptr) : Json{{"content", std::move(pending)}};
    pending = Json::array();
  }
  choice["finish_reason"] = finish.empty() ? Json(nullptr) : Json(finish);
  Json json = {{"id", id_},
               {"object", "chat.completion.chunk"},
               {"created", created_},
               {"model", model().names.front()},
               {"system_fingerprint", fingerprint_},
               {"choices", Json::array({std::move(choice)})}};
  if (request().return_token_ids && is_first) json["prompt_token_ids"] = prompt().ids;
  if (request().continuous_usage) json["usage"] = usage_json(usage());
  return json;
}

// The role comes with the engine's first output, not before: clients measure the time to it. A
// token without text (a header's, half a character) gives no event.
std::string OpenAiChat::chunks(Choice& choice, size_t index, const ChatDelta& delta) {
  std::string events;
  if (!std::exchange(choice.opened, true)) {
    events += sse_event(chunk(index, {{"role", "assistant"}, {"content", ""}}));
  }
  Json json = Json::object();
  if (!delta.reasoning.empty() && request().include_reasoning) {
    json["reasoning"] = delta.reasoning;
    json["reasoning_content"] = delta.reasoning;
  }
  if (!delta.content.empty()) json["content"] = delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (request().is_old_form) {
      json["function_call"] = call_json(call)["function"];
    } else {
      json["tool_calls"].push_back(call_json(call));
    }
  }
  if (!json.empty()) events += sse_event(chunk(index, std::move(json)));
  if (choice.finish != FinishReason::kNone) {
    events += sse_event(chunk(index, Json::object(), finish(choice)));
  }
  return events;
}

Json OpenAiChat::message(const Choice& choice) const {
  const ChatReply& reply = choice.stream.reply();
  const bool only_calls = reply.content.empty() && !reply.tool_calls.empty();
  Json json = {{"role", "assistant"},
               {"content", only_calls ? Json(nullptr) : Json(reply.content)},
               {"refusal", nullptr}};
  if (!reply.reasoning.empty() && request().include_reasoning) {
    json["reasoning"] = reply.reasoning;
    json["reasoning_content"] = reply.reasoning;
  }
  for (const ToolCall& call : reply.tool_calls) {
    const Json function = {{"name", call.name}, {"arguments", call.arguments}};
    if (request().is_old_form) {
      json["function_call"] = function;
    } else {
      json["tool_calls"].push_back({{"id", call.id}, {"type", "function"}, {"function", function}});
    }
  }
  return json;
}

std::string OpenAiChat::finish(const Choice& choice) const {
  const std::string_view reason = finish_of(choice);
  return request().is_old_form && reason == "tool_calls" ? "function_call" : std::string(reason);
}

void OpenAiChat::on_all_ended() {
  if (request().stream) {
    std::string last;
    if (request().include_usage) {
      last = sse_event({{"id", id_},
                        {"object", "chat.completion.chunk"},
                        {"created", created_},
                        {"model", model().names.front()},
                        {"system_fingerprint", fingerprint_},
                        {"choices", Json::array()},
                        {"usage", usage_json(usage())}});
    }
    return end_stream(last + kSseDone);
  }
  Json list = Json::array();
  for (size_t i = 0; i < choices().size(); ++i) {
    const Choice& choice = choices()[i];
    Json logprobs = nullptr;
    if (request().sampling.logprobs >= 0) logprobs = {{"content", std::move(pending_[i].logprobs)}};
    list.push_back({{"index", i},
                    {"message", message(choice)},
                    {"logprobs", std::move(logprobs)},
                    {"finish_reason", finish(choice)}});
    if (request().return_token_ids) list.back()["token_ids"] = pending_[i].ids;
  }
  Json json = {{"id", id_},
               {"object", "chat.completion"},
               {"created", created_},
               {"model", model().names.front()},
               {"system_fingerprint", fingerprint_},
               {"choices", std::move(list)},
               {"usage", usage_json(usage())}};
  if (request().return_token_ids) json["prompt_token_ids"] = prompt().ids;
  reply().send({.body = to_text(json)});
}

}  // namespace nibble::server
