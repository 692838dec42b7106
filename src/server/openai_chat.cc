#include "server/openai_chat.h"

#include <ctime>

#include "server/sse.h"
#include "text/chat/chat_stream.h"

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

// One of the n answers.
struct Choice {
  explicit Choice(ChatStream s) : stream(std::move(s)) {}

  ChatStream stream;
  Json logprobs = Json::array();  // of content; streaming: what has not been sent
  std::vector<int32_t> ids;       // all; streaming: what has not been sent
  FinishReason finish = FinishReason::kNone;
  int64_t num_tokens = 0;
  bool opened = false;  // the role has been sent
};

class ChatGeneration final : public Generation {
 public:
  ChatGeneration(const GenerationContext& context, ChatRequest request, HarmonyPrompt prompt,
                 std::shared_ptr<HttpReply> reply)
      : Generation(context, std::move(reply)),
        request_(std::move(request)),
        prompt_(std::move(prompt)),
        fingerprint_(context.fingerprint),
        id_(random_id("chatcmpl-")),
        created_(std::time(nullptr)) {
    options_.start = prompt_.start;
    for (const FunctionTool& tool : request_.chat.tools) options_.functions.push_back(tool.name);
    options_.stop = StopStrings(request_.stop, request_.include_stop_in_output);
    options_.must_call = request_.chat.options.tool_choice.kind == ToolChoice::Kind::kRequired;
    for (int32_t i = 0; i < request_.n; ++i) {
      options_.call_id_seed = random_id("");
      choices_.emplace_back(ChatStream(*model().harmony, options_));
    }
  }

  void run(int32_t max_tokens) {
    std::vector<Request> requests;
    for (int32_t i = 0; i < request_.n; ++i) {
      Request& r = requests.emplace_back();
      r.prompt = prompt_.ids;
      r.sampling = request_.sampling;
      if (r.sampling.seed) *r.sampling.seed += static_cast<uint64_t>(i);
      r.max_tokens = max_tokens;
      r.min_tokens = std::min(request_.min_tokens, max_tokens);
      r.stop_ids = stop_ids_for(model(), request_);
      if (options_.needs_watcher()) {
        r.watcher = std::make_shared<ChatWatcher>(*model().harmony, options_);
      }
    }
    submit(std::move(requests));
  }

 private:
  void on_output(size_t index, const Output& output) override;
  void on_all_ended() override;

  ChatDelta advance(Choice& choice, const Output& output);
  void add_logprob(Choice& choice, const Output& output);
  std::string chunks(Choice& choice, size_t index, const ChatDelta& delta);
  Json chunk(size_t index, Json delta, const std::string& finish = {});
  Json message(const Choice& choice) const;
  std::string finish_of(const Choice& choice) const;
  Usage usage() const;

  ChatRequest request_;
  HarmonyPrompt prompt_;
  ChatStreamOptions options_;
  const std::string fingerprint_;
  const std::string id_;
  const int64_t created_;
  std::vector<Choice> choices_;
  int64_t cached_tokens_ = 0;
};

void ChatGeneration::add_logprob(Choice& choice, const Output& output) {
  const Tokenizer& tokenizer = *model().tokenizer;
  Json entry = token_json(tokenizer, output.id, output.logprob);
  entry["top_logprobs"] = Json::array();
  for (const TokenLogprob& top : output.top) {
    entry["top_logprobs"].push_back(token_json(tokenizer, top.id, top.logprob));
  }
  choice.logprobs.push_back(std::move(entry));
}

ChatDelta ChatGeneration::advance(Choice& choice, const Output& output) {
  ChatStream& stream = choice.stream;
  ChatDelta delta;
  if (output.id >= 0) {
    ++choice.num_tokens;
    if (request_.return_token_ids) choice.ids.push_back(output.id);
    cached_tokens_ = std::max<int64_t>(cached_tokens_, output.cached_tokens);
    const auto& stop_ids = request_.stop_token_ids;
    // A stop id of the caller's that is text is not part of the answer.
    const bool is_end = output.finish == FinishReason::kStop &&
                        !model().tokenizer->is_special(output.id) &&
                        std::find(stop_ids.begin(), stop_ids.end(), output.id) != stop_ids.end();
    const bool was_content = stream.part() == HarmonyPart::kContent && !stream.stopped();
    if (!is_end) delta = stream.push(output.id);
    const bool is_content = was_content && stream.part() == HarmonyPart::kContent && !is_end;
    if (is_content && request_.sampling.logprobs >= 0) add_logprob(choice, output);
  }
  if (output.finish != FinishReason::kNone) {
    choice.finish = output.finish;
    ChatDelta rest = stream.finish();
    delta.reasoning += rest.reasoning;
    delta.content += rest.content;
    delta.tool_calls.insert(delta.tool_calls.end(), rest.tool_calls.begin(), rest.tool_calls.end());
  }
  return delta;
}

void ChatGeneration::on_output(size_t index, const Output& output) {
  Choice& choice = choices_[index];
  const ChatDelta delta = advance(choice, output);
  if (request_.stream) stream(chunks(choice, index, delta));
}

std::string ChatGeneration::finish_of(const Choice& choice) const {
  return std::string(choice.stream.finish_reason(choice.finish == FinishReason::kLength));
}

// `finish` empty: more is to come.
Json ChatGeneration::chunk(size_t index, Json delta, const std::string& finish) {
  const bool is_first = delta.contains("role");
  Json choice = {{"index", index}, {"delta", std::move(delta)}};
  if (request_.return_token_ids && !is_first) {
    choice["token_ids"] = std::exchange(choices_[index].ids, {});
  }
  if (request_.sampling.logprobs >= 0) {
    Json& pending = choices_[index].logprobs;
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
  if (request_.return_token_ids && is_first) json["prompt_token_ids"] = prompt_.ids;
  if (request_.continuous_usage) json["usage"] = usage_json(usage());
  return json;
}

// The role comes with the engine's first output, not before: clients measure the time to it. A
// token without text (a header's, half a character) gives no event.
std::string ChatGeneration::chunks(Choice& choice, size_t index, const ChatDelta& delta) {
  std::string events;
  if (!std::exchange(choice.opened, true)) {
    events += sse_event(chunk(index, {{"role", "assistant"}, {"content", ""}}));
  }
  Json json = Json::object();
  if (!delta.reasoning.empty() && request_.include_reasoning) {
    json["reasoning"] = delta.reasoning;
    json["reasoning_content"] = delta.reasoning;
  }
  if (!delta.content.empty()) json["content"] = delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    json["tool_calls"].push_back(call_json(call));
  }
  if (!json.empty()) events += sse_event(chunk(index, std::move(json)));
  if (choice.finish != FinishReason::kNone) {
    events += sse_event(chunk(index, Json::object(), finish_of(choice)));
  }
  return events;
}

Json ChatGeneration::message(const Choice& choice) const {
  const ChatReply& reply = choice.stream.reply();
  const bool only_calls = reply.content.empty() && !reply.tool_calls.empty();
  Json json = {{"role", "assistant"},
               {"content", only_calls ? Json(nullptr) : Json(reply.content)},
               {"refusal", nullptr}};
  if (!reply.reasoning.empty() && request_.include_reasoning) {
    json["reasoning"] = reply.reasoning;
    json["reasoning_content"] = reply.reasoning;
  }
  for (const ToolCall& call : reply.tool_calls) {
    json["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return json;
}

Usage ChatGeneration::usage() const {
  Usage usage{.prompt_tokens = static_cast<int64_t>(prompt_.ids.size()),
              .cached_tokens = cached_tokens_,
              .has_reasoning = true};
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.num_tokens;
    usage.reasoning_tokens += choice.stream.counts().reasoning_tokens;
  }
  return usage;
}

void ChatGeneration::on_all_ended() {
  if (request_.stream) {
    std::string last;
    if (request_.include_usage) {
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
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Json logprobs = nullptr;
    if (request_.sampling.logprobs >= 0) logprobs = {{"content", std::move(choice.logprobs)}};
    list.push_back({{"index", i},
                    {"message", message(choice)},
                    {"logprobs", std::move(logprobs)},
                    {"finish_reason", finish_of(choice)}});
    if (request_.return_token_ids) list.back()["token_ids"] = choice.ids;
  }
  Json json = {{"id", id_},
               {"object", "chat.completion"},
               {"created", created_},
               {"model", model().names.front()},
               {"system_fingerprint", fingerprint_},
               {"choices", std::move(list)},
               {"usage", usage_json(usage())}};
  if (request_.return_token_ids) json["prompt_token_ids"] = prompt_.ids;
  reply().send({.body = to_text(json)});
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  localtime_r(&now, &tm);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &tm)};
}

}  // namespace

Result<HarmonyPrompt> render_chat(const ServedModel& model, Chat chat) {
  if (!model.harmony) {
    return Failure{"this model's tokenizer has no chat format that nibble knows (Harmony); " +
                   std::string("use /v1/completions")};
  }
  chat.options.current_date = model.current_date.empty() ? today() : model.current_date;
  return model.harmony->render(chat);
}

void start_chat(const GenerationContext& context, ChatRequest request,
                std::shared_ptr<HttpReply> reply) {
  if (auto error = check_count(context.admission, 1, request.n)) {
    return reply->send(api_error_response(*error));
  }
  if (auto error = check_ids(context.model, request)) {
    return reply->send(api_error_response(*error));
  }
  size_t bytes = 0;
  for (const ChatMessage& message : request.chat.messages) bytes += message.content.size();
  if (auto error = check_text_bytes(context.model, bytes)) {
    return reply->send(api_error_response(*error));
  }
  auto prompt = render_chat(context.model, request.chat);
  if (!prompt) {
    return reply->send(api_error_response({.message = prompt.error(), .param = "messages"}));
  }
  int32_t max_tokens = 0;
  if (auto error = fit_prompt(context.model, prompt->ids.size(), request.max_tokens, max_tokens)) {
    return reply->send(api_error_response(*error));
  }
  if (reply->gone()) return;
  std::make_shared<ChatGeneration>(context, std::move(request), *std::move(prompt),
                                   std::move(reply))
      ->run(max_tokens);
}

}  // namespace nibble::server
