#include "server/openai_responses.h"

#include "server/openai_tokens.h"
#include "server/sse.h"

namespace nibble::server {

OpenAiResponses::OpenAiResponses(const GenerationContext& context, PreparedChat chat, Json echo,
                                 std::shared_ptr<HttpReply> reply)
    : PartedChat(context, std::move(chat), std::move(reply)),
      echo_(std::move(echo)),
      id_(random_id("resp_")) {}

std::string OpenAiResponses::event(const char* type, const Json& fields) {
  Json json = {{"type", type}, {"sequence_number", next_number_++}};
  json.update(fields);
  return sse_named_event(json);
}

Json OpenAiResponses::response(const char* status, Json output) const {
  Json json = {{"id", id_},
               {"object", "response"},
               {"created_at", created_},
               {"status", status},
               {"error", nullptr},
               {"incomplete_details", nullptr},
               {"model", model().names.front()},
               {"output", std::move(output)},
               {"usage", nullptr}};
  json.update(echo_);
  if (std::string_view(status) == "in_progress") return json;
  const Usage now = usage();
  json["usage"] = {{"input_tokens", now.prompt_tokens},
                   {"input_tokens_details", {{"cached_tokens", now.cached_tokens}}},
                   {"output_tokens", now.completion_tokens},
                   {"output_tokens_details", {{"reasoning_tokens", now.reasoning_tokens}}},
                   {"total_tokens", now.prompt_tokens + now.completion_tokens}};
  if (std::string_view(status) == "incomplete") {
    json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  }
  return json;
}

Json OpenAiResponses::content_part(const Part& part, const std::string& text) const {
  if (part.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", part.logprobs}};
}

// "in_progress": as it is announced, without what is still to come.
Json OpenAiResponses::item(const Part& part, const char* status) const {
  const bool announced = std::string_view(status) == "in_progress";
  Json content = Json::array();
  if (!announced) content.push_back(content_part(part, part.text));
  switch (part.kind) {
    case Kind::kReasoning:
      return {{"id", part.id},
              {"type", "reasoning"},
              {"summary", Json::array()},
              {"content", std::move(content)},
              {"encrypted_content", nullptr},
              {"status", status}};
    case Kind::kText:
      return {{"id", part.id},
              {"type", "message"},
              {"role", "assistant"},
              {"status", status},
              {"content", std::move(content)}};
    case Kind::kCall:
      break;
  }
  return {{"id", part.id},
          {"type", "function_call"},
          {"call_id", part.call_id},
          {"name", part.call_name},
          {"arguments", announced ? "" : part.text},
          {"status", status}};
}

void OpenAiResponses::on_content_token(const Output& output) {
  if (request().sampling.logprobs >= 0) {
    pending_.push_back(token_with_top_json(*model().tokenizer, output));
    // Of the whole answer there is a copy while its text is written, and a stream's last events
    // have it four times.
    hold((request().stream ? 3 : 2) * held_bytes(pending_.back()));
  }
}

std::string OpenAiResponses::on_start() {
  const Json json = {{"response", response("in_progress", Json::array())}};
  std::string events = event("response.created", json);
  return events + event("response.in_progress", json);
}

std::string OpenAiResponses::on_begin(Part& part) {
  part.id = random_id(part.kind == Kind::kReasoning ? "rs_"
                      : part.kind == Kind::kText    ? "msg_"
                                                    : "fc_");
  std::string events = event("response.output_item.added",
                             {{"output_index", part.index}, {"item", item(part, "in_progress")}});
  if (part.kind == Kind::kCall) return events;
  return events + event("response.content_part.added", {{"item_id", part.id},
                                                        {"output_index", part.index},
                                                        {"content_index", 0},
                                                        {"part", content_part(part, "")}});
}

std::string OpenAiResponses::on_text(Part& part, const std::string& piece) {
  Json fields = {{"item_id", part.id}, {"output_index", part.index}};
  if (part.kind == Kind::kCall) {
    fields["delta"] = piece;
    return event("response.function_call_arguments.delta", fields);
  }
  fields["content_index"] = 0;
  fields["delta"] = piece;
  if (part.kind == Kind::kReasoning) return event("response.reasoning_text.delta", fields);
  part.logprobs.insert(part.logprobs.end(), pending_.begin(), pending_.end());
  fields["logprobs"] = std::exchange(pending_, Json::array());
  return event("response.output_text.delta", fields);
}

std::string OpenAiResponses::on_end(Part& part) {
  Json fields = {{"item_id", part.id}, {"output_index", part.index}};
  std::string events;
  if (part.kind == Kind::kCall) {
    fields["name"] = part.call_name;
    fields["arguments"] = part.text;
    events = event("response.function_call_arguments.done", fields);
  } else {
    fields["content_index"] = 0;
    Json done = fields;
    done["text"] = part.text;
    const bool reasoning = part.kind == Kind::kReasoning;
    if (!reasoning) {
      part.logprobs.insert(part.logprobs.end(), pending_.begin(), pending_.end());
      pending_ = Json::array();
      done["logprobs"] = part.logprobs;
    }
    events = event(reasoning ? "response.reasoning_text.done" : "response.output_text.done", done);
    fields["part"] = content_part(part, part.text);
    events += event("response.content_part.done", fields);
  }
  return events + event("response.output_item.done",
                        {{"output_index", part.index}, {"item", item(part, "completed")}});
}

std::string OpenAiResponses::on_finish() {
  const bool cut = finish_of(choice()) == "length";
  return event(cut ? "response.incomplete" : "response.completed", {{"response", whole()}});
}

Json OpenAiResponses::whole() {
  const bool cut = finish_of(choice()) == "length";
  Json output = Json::array();
  for (const Part& part : parts()) {
    const bool last = part.index + 1 == parts().size();
    output.push_back(item(part, cut && last ? "incomplete" : "completed"));
  }
  return response(cut ? "incomplete" : "completed", std::move(output));
}

std::string OpenAiResponses::error_event(const ApiError& error) const {
  Json json = {{"type", "response.failed"}, {"sequence_number", next_number_}};
  json["response"] = response("failed", Json::array());
  json["response"]["error"] = {{"code", error.code.empty() ? "server_error" : error.code},
                               {"message", error.message}};
  return sse_named_event(json);
}

}  // namespace nibble::server
