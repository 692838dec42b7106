#include "server/server.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "server/anthropic_messages.h"
#include "server/anthropic_types.h"
#include "server/chat_page.h"
#include "server/generation.h"
#include "server/metrics.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"
#include "server/openai_responses.h"
#include "server/openai_tokens.h"
#include "server/openai_types.h"
#include "server/work_queue.h"
#include "text/memory_use.h"

namespace nibble::server {
namespace {

constexpr int kWorkers = 2;
constexpr size_t kMaxWaitingWork = 1'024;
constexpr size_t kFreeWorkBytes = 8 << 20;  // of each worker: what small requests are read with
constexpr size_t kEchoes = 3;               // of a request in an answer, at once
constexpr std::string_view kModels = "/v1/models";
// Of texts to be tokenized, and of those that ids become.
constexpr size_t kMaxTextBytes = 4 << 20;

ApiStyle style_of(std::string_view path) {
  return path.starts_with("/v1/messages") ? ApiStyle::kAnthropic : ApiStyle::kOpenAi;
}

ApiError text_too_long() {
  return {.status = 413,
          .message = "texts of more than " + std::to_string(kMaxTextBytes) +
                     " bytes are not tokenized or put together here: send them in parts"};
}

// False, and answered: there are not so many bytes more.
bool take(ByteShare& work, size_t bytes, HttpReply& reply, ApiStyle style = ApiStyle::kOpenAi) {
  const auto error = take_more(work, bytes);
  if (error) reply.send(api_error_response(*error, style));
  return !error;
}

bool is_id(std::string_view text) {
  return !text.empty() && text.size() <= 64 &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; });
}

}  // namespace

class Server::Impl {
 public:
  explicit Impl(const ServerOptions& options)
      : options_(options),
        fingerprint_("nibble-" + options.version),
        admission_(options.max_num_seqs + options.max_queued_requests),
        answers_(std::make_shared<ByteBudget>(options.max_answers_bytes)),
        grammars_({.time = options.grammar_timeout, .max_bytes = options.grammar_bytes}),
        work_(kWorkers, kMaxWaitingWork),
        http_(
            options.http,
            [this](const HttpRequest& head, HttpHeaders& headers) { return gate(head, headers); },
            [this](HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
              handle(std::move(request), reply);
            },
            [](int status, const std::string& message) {
              return api_error_body({.status = status, .message = message});
            },
            [this](const std::string& method, const std::string& path, int status) {
              count(method, path, status);
            }) {}

  uint16_t port() const { return http_.port(); }
  void start() { http_.start(); }
  int64_t num_active() const { return admission_.count(); }

  void serve(ServedModel model) {
    for (int32_t id = 0; id < model.tokenizer->size(); ++id) {
      model.max_token_bytes =
          std::max(model.max_token_bytes, model.tokenizer->token_bytes(id).size());
    }
    model_ = std::move(model);
    grammars_.serve(GrammarVocabulary(*model_.tokenizer, model_.engine->model().info().vocab_size));
    ready_ = true;
  }

  void drain(std::chrono::milliseconds timeout) {
    draining_ = true;
    http_.drain();
    wait_until_idle(timeout);
    live_.cancel_all();
    wait_until_idle(std::chrono::seconds(5));  // one step of the engine
  }

  void stop() {
    draining_ = true;
    work_.stop();
    grammars_.stop();
    http_.stop();
  }

 private:
  using Handler = void (Impl::*)(const HttpRequest&, const std::shared_ptr<HttpReply>&);
  // Takes long: in a worker, with the memory that it was read with, to which it adds.
  using Worker = void (Impl::*)(const HttpRequest&, const std::shared_ptr<HttpReply>&,
                                ByteShare& work);
  struct Route {
    std::string_view method, path;
    Handler handler = nullptr;  // or worker
    bool guarded = false;       // needs the API key
    bool needs_model = false;   // 503 while loading
    Worker worker = nullptr;
  };
  static const Route kRoutes[];

  void wait_until_idle(std::chrono::milliseconds timeout) const {
    const auto end = std::chrono::steady_clock::now() + timeout;
    const auto busy = [this] { return admission_.count() > 0 || http_.num_connections() > 0; };
    while (busy() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  // nullptr: no such path, or (`path_known`) not with this method.
  static const Route* find_route(const HttpRequest& head, bool& path_known);
  std::optional<HttpResponse> gate(const HttpRequest& head, HttpHeaders& headers) const;
  std::optional<ApiError> unavailable() const;
  void handle(HttpRequest request, const std::shared_ptr<HttpReply>& reply);
  void count(const std::string& method, const std::string& path, int status);

  bool check_model(const std::string& name, HttpReply& reply,
                   ApiStyle style = ApiStyle::kOpenAi) const;
  GenerationContext context(const HttpRequest& request, ApiStyle style = ApiStyle::kOpenAi) {
    return {model_,
            admission_,
            live_,
            grammars_,
            metrics_,
            answers_,
            fingerprint_,
            client_of(options_.access, request),
            options_.by_priority,
            style};
  }
  Json model_json(const std::string& name) const;

  void page(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void health(const HttpRequest&, const std::shared_ptr<HttpReply>& reply);
  void version(const HttpRequest&, const std::shared_ptr<HttpReply>& reply);
  void metrics(const HttpRequest&, const std::shared_ptr<HttpReply>& reply);
  void load(const HttpRequest&, const std::shared_ptr<HttpReply>& reply);
  void models(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void chat(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply, ByteShare& work);
  void completion(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                  ByteShare& work);
  void responses(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                 ByteShare& work);
  void messages(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                ByteShare& work);
  void count_tokens(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                    ByteShare& work);
  void tokenizer_info(const HttpRequest&, const std::shared_ptr<HttpReply>& reply);
  void tokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                ByteShare& work);
  void detokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                  ByteShare& work);

  const ServerOptions options_;
  const std::string fingerprint_;
  ServedModel model_;  // read once ready_ is set
  std::atomic<bool> ready_{false};
  std::atomic<bool> draining_{false};
  Admission admission_;
  const std::shared_ptr<ByteBudget> answers_;
  LiveGenerations live_;
  GrammarService grammars_;
  ServerMetrics metrics_;  // of the server's thread
  WorkQueue work_;
  HttpServer http_;
};

const Server::Impl::Route Server::Impl::kRoutes[] = {
    {"GET", "/", &Impl::page},
    {"GET", kPagePath, &Impl::page},
    {"GET", "/health", &Impl::health},
    {"GET", "/ping", &Impl::health},
    {"GET", "/version", &Impl::version, true},
    {"GET", "/metrics", &Impl::metrics, true, true},
    {"GET", "/load", &Impl::load, true, true},
    {"GET", kModels, &Impl::models, true, true},
    {"POST", "/v1/chat/completions", nullptr, true, true, &Impl::chat},
    {"POST", "/v1/completions", nullptr, true, true, &Impl::completion},
    {"POST", "/v1/responses", nullptr, true, true, &Impl::responses},
    {"POST", "/v1/messages", nullptr, true, true, &Impl::messages},
    {"POST", "/v1/messages/count_tokens", nullptr, true, true, &Impl::count_tokens},
    {"GET", "/tokenizer_info", &Impl::tokenizer_info, true, true},
    {"POST", "/tokenize", nullptr, true, true, &Impl::tokenize},
    {"POST", "/v1/tokenize", nullptr, true, true, &Impl::tokenize},
    {"POST", "/detokenize", nullptr, true, true, &Impl::detokenize},
    {"POST", "/v1/detokenize", nullptr, true, true, &Impl::detokenize},
};

const Server::Impl::Route* Server::Impl::find_route(const HttpRequest& head, bool& path_known) {
  path_known = false;
  const bool is_model = head.path.starts_with(std::string(kModels) + "/");
  const bool is_page = head.path.starts_with(kPagePath);
  for (const Route& route : kRoutes) {
    if (route.path != head.path && !(is_model && route.path == kModels) &&
        !(is_page && route.path == kPagePath)) {
      continue;
    }
    path_known = true;
    if (head.method == route.method || (head.method == "HEAD" && route.method == "GET")) {
      return &route;
    }
  }
  return nullptr;
}

std::optional<ApiError> Server::Impl::unavailable() const {
  if (draining_) {
    return ApiError{.status = 503,
                    .message = "the server is shutting down",
                    .code = "shutting_down",
                    .retry_after_s = 5};
  }
  if (!ready_) {
    return ApiError{.status = 503,
                    .message = "the model is being loaded",
                    .code = "model_loading",
                    .retry_after_s = 2};
  }
  return std::nullopt;
}

std::optional<HttpResponse> Server::Impl::gate(const HttpRequest& head,
                                               HttpHeaders& headers) const {
  const std::string_view id = head.header("x-request-id");
  headers.emplace_back("X-Request-Id", is_id(id) ? std::string(id) : random_id("req-"));
  bool path_known = false;
  const Route* route = find_route(head, path_known);
  const ApiStyle style = style_of(head.path);
  if (auto error = check_access(options_.access, head, route && route->guarded, headers)) {
    return api_error_response(*error, style);
  }
  if (head.method == "OPTIONS") return std::nullopt;
  if (!route) {
    ApiError error{.status = 404, .message = "there is nothing at " + head.path};
    if (path_known) error = {.status = 405, .message = head.method + " is not for " + head.path};
    HttpResponse response = api_error_response(error, style);
    if (path_known) response.headers.emplace_back("Allow", "GET, HEAD, POST, OPTIONS");
    return response;
  }
  if (route->needs_model) {
    if (const auto error = unavailable()) return api_error_response(*error, style);
  }
  return std::nullopt;
}

void Server::Impl::handle(HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
  if (request.method == "OPTIONS") {
    return reply->send({.status = 204, .content_type = "", .headers = {{"Allow", "GET, POST"}}});
  }
  bool path_known = false;
  const Route* route = find_route(request, path_known);
  if (route->worker == nullptr) return (this->*route->handler)(request, reply);
  const auto shared = std::make_shared<const HttpRequest>(std::move(request));
  const bool taken = work_.push(shared->body.size(), [this, route, shared, reply] {
    if (reply->gone()) return;
    ByteShare work(answers_, kFreeWorkBytes);
    if (!take(work, json_bytes(shared->body), *reply, style_of(shared->path))) return;
    try {
      (this->*route->worker)(*shared, reply, work);
    } catch (const std::bad_alloc&) {
      reply->send(api_error_response({.status = 503,
                                      .message = "no memory is left for this request",
                                      .code = "server_overloaded",
                                      .retry_after_s = 1},
                                     style_of(shared->path)));
    }
  });
  if (taken) return;
  reply->send(api_error_response({.status = 503,
                                  .message = "the server is busy",
                                  .code = "server_overloaded",
                                  .retry_after_s = 1}));
}

bool Server::Impl::check_model(const std::string& name, HttpReply& reply, ApiStyle style) const {
  const auto& names = model_.names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return true;
  reply.send(api_error_response(
      {.status = 404,
       .message = "the model \"" + name + "\" is not served here; \"" + names.front() + "\" is",
       .param = "model",
       .code = "model_not_found"},
      style));
  return false;
}

void Server::Impl::page(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  if (auto response = chat_page_response(request)) return reply->send(std::move(*response));
  reply->send(
      api_error_response({.status = 404, .message = "there is nothing at " + request.path}));
}

void Server::Impl::health(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  if (const auto error = unavailable()) return reply->send(api_error_response(*error));
  if (model_.engine->stats().failed) {
    return reply->send(api_error_response({.status = 503, .message = "the engine has failed"}));
  }
  reply->send({.body = R"({"status":"ok"})"});
}

void Server::Impl::version(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  reply->send({.body = to_text({{"version", options_.version}})});
}

void Server::Impl::count(const std::string& method, const std::string& path, int status) {
  bool path_known = false;
  const Route* route = find_route({.method = method, .path = path}, path_known);
  // Labels are of a fixed set, whatever strangers send.
  metrics_.answered(route ? route->path : "other", route ? method : "other", status);
}

void Server::Impl::metrics(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  reply->send({.content_type = "text/plain; version=0.0.4; charset=utf-8",
               .body = metrics_.text({.engine = model_.engine->stats(),
                                      .max_model_len = model_.engine->max_model_len(),
                                      .kv_tokens = model_.engine->kv_tokens(),
                                      .state_slots = model_.engine->kv_plan().state_slots,
                                      .connections = http_.num_connections(),
                                      .model = model_.names.front()})});
}

// "server_load" is vLLM's; the rest is for the page.
void Server::Impl::load(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  const EngineStats stats = model_.engine->stats();
  const ProcessStats process = process_stats();
  reply->send({.body = to_text({{"server_load", admission_.count()},
                                {"requests_running", stats.num_running},
                                {"requests_waiting", stats.num_waiting},
                                {"kv_cache_usage", stats.kv_usage},
                                {"kv_cache_tokens", model_.engine->kv_tokens()},
                                {"prompt_tokens", stats.prompt_tokens},
                                {"generation_tokens", stats.generation_tokens},
                                {"prefix_cache_queries", stats.prefix_cache_queries},
                                {"prefix_cache_hits", stats.prefix_cache_hits},
                                {"preemptions", stats.num_preemptions},
                                {"connections", http_.num_connections()},
                                {"resident_memory_bytes", process.resident_bytes},
                                {"open_files", process.open_fds}})});
}

Json Server::Impl::model_json(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", model_.created},
          {"owned_by", "nibble"},
          {"root", model_.root},
          {"parent", nullptr},
          {"max_model_len", model_.engine->max_model_len()}};
}

void Server::Impl::models(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  if (request.path.size() > kModels.size() + 1) {
    std::string name = request.path.substr(kModels.size() + 1);
    for (size_t at; (at = name.find("%2F")) != std::string::npos;) name.replace(at, 3, "/");
    if (check_model(name, *reply)) reply->send({.body = to_text(model_json(name))});
    return;
  }
  Json list = Json::array();
  for (const std::string& name : model_.names) list.push_back(model_json(name));
  reply->send({.body = to_text({{"object", "list"}, {"data", std::move(list)}})});
}

void Server::Impl::chat(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                        ByteShare& work) {
  ChatRequest chat;
  if (auto error = parse_chat_request(request.body, model_.defaults, chat)) {
    return reply->send(api_error_response(*error));
  }
  if (check_model(chat.model, *reply)) {
    start_chat(context(request), std::move(chat), make_chat<OpenAiChat>, reply, work);
  }
}

void Server::Impl::responses(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                             ByteShare& work) {
  ResponsesRequest responses;
  if (auto error = parse_responses_request(request.body, model_.defaults, responses)) {
    return reply->send(api_error_response(*error));
  }
  if (!check_model(responses.model, *reply)) return;
  responses.echo_bytes = kEchoes * held_bytes(responses.echo);
  const auto make = [echo = std::move(responses.echo)](const GenerationContext& context,
                                                       PreparedChat chat,
                                                       std::shared_ptr<HttpReply> to) {
    return std::make_shared<OpenAiResponses>(context, std::move(chat), echo, std::move(to));
  };
  start_chat(context(request), std::move(responses), make, reply, work);
}

void Server::Impl::messages(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                            ByteShare& work) {
  ChatRequest chat;
  if (auto error = parse_messages_request(request.body, model_.defaults,
                                          {.refuses_images = model_.is_text_part}, chat)) {
    return reply->send(api_error_response(*error, ApiStyle::kAnthropic));
  }
  if (!check_model(chat.model, *reply, ApiStyle::kAnthropic)) return;
  start_chat(context(request, ApiStyle::kAnthropic), std::move(chat), make_chat<AnthropicMessages>,
             reply, work);
}

void Server::Impl::count_tokens(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                                ByteShare& work) {
  ChatRequest chat;
  auto error =
      parse_messages_request(request.body, model_.defaults,
                             {.counting = true, .refuses_images = model_.is_text_part}, chat);
  if (!error && !check_model(chat.model, *reply, ApiStyle::kAnthropic)) return;
  if (!error) {
    ChatPrompt prompt;
    error = render_chat(model_, chat.chat, work, prompt);
    if (!error) return reply->send({.body = to_text({{"input_tokens", prompt.ids.size()}})});
  }
  reply->send(api_error_response(*error, ApiStyle::kAnthropic));
}

void Server::Impl::completion(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                              ByteShare& work) {
  CompletionRequest completion;
  if (auto error = parse_completion_request(request.body, model_.defaults, completion)) {
    return reply->send(api_error_response(*error));
  }
  if (check_model(completion.model, *reply)) {
    start_completion(context(request), std::move(completion), reply, work);
  }
}

// What lm-eval's remote tokenizer asks for before it uses the two below.
void Server::Impl::tokenizer_info(const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
  Json end = nullptr;
  if (!model_.stop_ids.empty()) end = token_text(*model_.tokenizer, model_.stop_ids[0]);
  reply->send({.body = to_text({{"eos_token", std::move(end)},
                                {"bos_token", nullptr},
                                {"pad_token", nullptr},
                                {"chat_template", nullptr}})});
}

void Server::Impl::tokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                            ByteShare& work) {
  if (request.body.size() > kMaxTextBytes) return reply->send(api_error_response(text_too_long()));
  TokenizeRequest tokenize;
  if (auto error = parse_tokenize_request(request.body, tokenize)) {
    return reply->send(api_error_response(*error));
  }
  if (!check_model(tokenize.model, *reply)) return;
  const Tokenizer& tokenizer = *model_.tokenizer;
  std::vector<int32_t> ids;
  if (tokenize.chat) {
    ChatPrompt prompt;
    if (const auto error = render_chat(model_, *tokenize.chat, work, prompt)) {
      return reply->send(api_error_response(*error));
    }
    ids = std::move(prompt.ids);
  } else {
    // At first for ids, then for the answer.
    if (!take(work, kEncodedBytes * tokenize.prompt->size(), *reply)) return;
    if (tokenize.add_special_tokens) {
      const auto prefix = tokenizer.prefix_ids();
      ids.assign(prefix.begin(), prefix.end());
    }
    const auto text = tokenizer.encode(*tokenize.prompt, Specials::kRecognize);
    ids.insert(ids.end(), text.begin(), text.end());
  }
  const Json counts = {{"count", ids.size()}, {"max_model_len", model_.engine->max_model_len()}};
  std::string body = to_text(counts);
  body.back() = ',';
  body += "\"tokens\":" + ids_text(ids) + ",\"token_strs\":";
  body += (tokenize.return_token_strs ? token_texts(tokenizer, ids) : "null") + "}";
  reply->send({.body = std::move(body)});
}

void Server::Impl::detokenize(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply,
                              ByteShare& work) {
  DetokenizeRequest detokenize;
  if (auto error = parse_detokenize_request(request.body, detokenize)) {
    return reply->send(api_error_response(*error));
  }
  if (!check_model(detokenize.model, *reply)) return;
  size_t bytes = 0;
  for (const int32_t id : detokenize.tokens) {
    if (!model_.tokenizer->decodable(id)) {
      return reply->send(
          api_error_response({.message = "tokens has an id that is no token: " + std::to_string(id),
                              .param = "tokens"}));
    }
    bytes += model_.tokenizer->token_bytes(id).size();
  }
  if (bytes > kMaxTextBytes) return reply->send(api_error_response(text_too_long()));
  constexpr size_t kCopies = 3, kEscaped = 6;  // at most: \u001f
  work.clear();                                // the JSON that it was read with is gone
  const size_t ids = detokenize.tokens.size() * sizeof(int32_t);
  if (!take(work, ids + (kCopies + kEscaped) * bytes, *reply)) return;
  reply->send({.body = to_text({{"prompt", model_.tokenizer->decode(detokenize.tokens)}})});
}

Server::Server(const ServerOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Server::~Server() { impl_->stop(); }
uint16_t Server::port() const { return impl_->port(); }
void Server::start() { impl_->start(); }
void Server::serve(ServedModel model) { impl_->serve(std::move(model)); }
void Server::drain(std::chrono::milliseconds timeout) { impl_->drain(timeout); }
void Server::stop() { impl_->stop(); }
int64_t Server::num_active() const { return impl_->num_active(); }

}  // namespace nibble::server
