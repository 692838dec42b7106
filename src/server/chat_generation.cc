#include "server/chat_generation.h"

#include <algorithm>
#include <ctime>

#include "server/generation_check.h"

namespace nibble::server {
namespace {

using Kind = ToolChoice::Kind;

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  localtime_r(&now, &tm);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &tm)};
}

std::vector<WantedGrammar> wanted_grammars(const ServedModel& model, const ChatRequest& request) {
  std::optional<WantedGrammar> answer;
  if (request.format) answer = {.spec = *request.format, .field = request.format_field};
  return model.chat_format->forms(request.chat, answer);
}

// What is kept of a request whose messages have become ids: tools, once for the answer and twice
// while they are compiled, names for each parser and watcher, the form of the answer.
size_t kept_bytes(const PreparedChat& chat) {
  constexpr size_t kTool = sizeof(FunctionTool), kName = sizeof(std::string);
  size_t names = 0;
  if (may_call(chat.request.chat)) {
    for (const FunctionTool& tool : chat.request.chat.tools) names += kName + tool.name.size();
  }
  const size_t tools = kTool * chat.request.chat.tools.size() + text_bytes(chat.request.chat);
  const auto choices = static_cast<size_t>(chat.request.n);
  return chat.prompt.ids.size() * sizeof(int32_t) + 3 * tools + 4 * choices * names +
         (chat.request.format ? format_bytes(*chat.request.format) : 0) + chat.request.echo_bytes;
}

// All but the grammars.
std::optional<ApiError> prepare(const GenerationContext& context, PreparedChat& chat,
                                ByteShare& work) {
  ChatRequest& request = chat.request;
  if (auto error = check_count(context.admission, 1, request.n)) return error;
  if (auto error = check_ids(context.model, request)) return error;
  if (auto error = check_priority(context.by_priority, request)) return error;
  if (request.format && request.chat.options.continue_final_message) {
    return ApiError{
        .message = request.format_field + " cannot go with an answer that the last message begins",
        .param = request.format_field};
  }
  if (request.format && request.ignore_eos) {
    return ApiError{.message = request.format_field + " needs an end: ignore_eos is set",
                    .param = request.format_field};
  }
  size_t bytes = 0;
  for (const ChatMessage& message : request.chat.messages) bytes += message.content.size();
  if (auto error = check_text_bytes(context.model, bytes)) return error;
  if (auto error = render_chat(context.model, request.chat, work, chat.prompt)) return error;
  if (auto error =
          fit_prompt(context.model, chat.prompt.ids.size(), request.max_tokens, chat.max_tokens)) {
    return error;
  }
  request.chat.messages = {};
  request.chat.options.template_variables = {};
  work.clear();
  return take_more(chat.held, kept_bytes(chat));
}

}  // namespace

ChatGeneration::ChatGeneration(const GenerationContext& context, PreparedChat chat,
                               std::shared_ptr<HttpReply> reply)
    : Generation(context, std::move(reply), std::move(chat.held)),
      fingerprint_(context.fingerprint),
      created_(std::time(nullptr)),
      chat_(std::move(chat)) {
  using Must = HeaderRules::Must;
  const ChatRequest& request = chat_.request;
  options_.start = chat_.prompt.start;
  options_.in_reasoning = chat_.prompt.in_reasoning;
  const bool calls = may_call(request.chat);
  if (calls) {
    for (const FunctionTool& tool : request.chat.tools) options_.functions.push_back(tool.name);
  }
  options_.stop = StopStrings(request.stop, request.include_stop_in_output);
  const bool required = request.chat.options.tool_choice.kind == Kind::kRequired;
  options_.must = required ? Must::kCall : request.format ? Must::kAnswer : Must::kNothing;
  options_.stop_ids = request.stop_token_ids;
  options_.end_ids = request.ignore_eos ? std::vector<int32_t>{} : model().stop_ids;
  options_.named_call = request.chat.options.tool_choice.kind == Kind::kNamed;
  model().chat_format->take_forms(request.chat, request.format.has_value(),
                                  std::move(chat_.grammars), options_);
  if (calls) {
    options_.tools =
        std::make_shared<const std::vector<FunctionTool>>(std::move(chat_.request.chat.tools));
  }
  for (int32_t i = 0; i < request.n; ++i) {
    options_.call_id_seed = random_id("");
    choices_.emplace_back(ChatStream(*model().chat_format, options_));
  }
}

void ChatGeneration::run() {
  const ChatRequest& request = chat_.request;
  std::vector<Request> requests;
  for (int32_t i = 0; i < request.n; ++i) {
    Request& r = requests.emplace_back();
    r.prompt = chat_.prompt.ids;
    r.sampling = request.sampling;
    if (r.sampling.seed) *r.sampling.seed += static_cast<uint64_t>(i);
    r.max_tokens = chat_.max_tokens;
    r.min_tokens = std::min(request.min_tokens, chat_.max_tokens);
    r.stop_ids = stop_ids_for(model(), request);
    r.cache_salt = request.cache_salt;
    r.max_drafts = request.max_drafts;
    r.priority = request.priority;
    r.deadline = request.deadline;
    r.watcher = model().chat_format->watcher(options_);
  }
  submit(std::move(requests), request.n, request.stream);
}

void ChatGeneration::on_output(size_t index, const Output& output) {
  Choice& choice = choices_[index];
  Step step{.output = output, .delta = {}};
  if (output.id >= 0) {
    ++choice.num_tokens;
    cached_tokens_ = std::max<int64_t>(cached_tokens_, output.cached_tokens);
    const auto& stop_ids = chat_.request.stop_token_ids;
    // A stop id of the caller's that is text is not part of the answer.
    const bool is_end = output.finish == FinishReason::kStop &&
                        !model().tokenizer->is_special(output.id) &&
                        std::find(stop_ids.begin(), stop_ids.end(), output.id) != stop_ids.end();
    const bool was_stopped = choice.stream.stopped();
    if (!is_end) step.delta = choice.stream.push(output.id);
    // A template's content begins with its first text, Harmony's with a special token before it.
    step.is_content = !is_end && !was_stopped && choice.stream.part() == ChatPart::kContent &&
                      !model().tokenizer->is_special(output.id);
  }
  if (output.finish != FinishReason::kNone) {
    choice.finish = output.finish;
    step.delta.append(choice.stream.finish());
  }
  on_step(index, step);
}

Usage ChatGeneration::usage() const {
  Usage usage{.prompt_tokens = static_cast<int64_t>(chat_.prompt.ids.size()),
              .cached_tokens = cached_tokens_,
              .has_reasoning = true};
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.num_tokens;
    usage.reasoning_tokens += choice.stream.reasoning_tokens();
  }
  return usage;
}

std::optional<ApiError> render_chat(const ServedModel& model, Chat& chat, ByteShare& work,
                                    ChatPrompt& prompt) {
  if (!model.chat_format) {
    return ApiError{.message =
                        "this model has no chat template, and its tokenizer no format that nibble "
                        "knows: use /v1/completions",
                    .param = "messages"};
  }
  chat.options.current_date = model.current_date.empty() ? today() : model.current_date;
  std::optional<ApiError> no_room;
  auto rendered = model.chat_format->render(chat, [&](size_t bytes) {
    no_room = take_more(work, bytes);
    return !no_room;
  });
  if (no_room) return no_room;
  if (!rendered) return ApiError{.message = rendered.error(), .param = "messages"};
  prompt = *std::move(rendered);
  return std::nullopt;
}

void start_chat(const GenerationContext& context, ChatRequest request, const MakeChat& make,
                std::shared_ptr<HttpReply> reply, ByteShare& work) {
  auto chat = std::make_shared<PreparedChat>();
  chat->held = share_of(context);
  chat->request = std::move(request);
  chat->request.chat.options.parallel_tool_calls = chat->request.parallel_tool_calls;
  if (const auto error = prepare(context, *chat, work)) {
    return reply->send(api_error_response(*error, context.style));
  }
  if (reply->gone()) return;
  auto wanted = wanted_grammars(context.model, chat->request);
  if (wanted.empty()) return make(context, std::move(*chat), std::move(reply))->run();
  context.grammars.compile(context.client, std::move(wanted),
                           [context, chat, make, reply](GrammarService::Answer answer) {
                             if (answer.error)
                               return reply->send(api_error_response(*answer.error, context.style));
                             if (reply->gone()) return;
                             chat->grammars = std::move(answer.grammars);
                             make(context, std::move(*chat), reply)->run();
                           });
}

}  // namespace nibble::server
