#include "server/generation.h"

#include <malloc.h>

#include <new>
#include <random>

#include "server/sse.h"

namespace nibble::server {
namespace {

constexpr std::chrono::seconds kKeepAlive{15};
constexpr size_t kFreeBytes = 256 << 10;     // of each request: small ones are never refused
constexpr size_t kSequenceBytes = 16 << 10;  // its objects: watcher, detokenizer, callbacks
constexpr size_t kTokenBytes = 32;           // of an answer: text and id
constexpr size_t kTrimBytes = 16 << 20;      // given back to the system, not just to malloc

constexpr const char* kNoMemory = "no memory is left for this request";

ApiError shutting_down() {
  return {.status = 503,
          .message = "the server is shutting down",
          .code = "shutting_down",
          .retry_after_s = 5};
}

// What a call to the engine gives, where it is not memory that it fails for.
template <typename Call>
auto unless_memory_ends(Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Failure{kNoMemory};
  }
}

// What the engine and this keep of a request, at most.
size_t held_bytes(const Request& r) {
  const SamplingParams& s = r.sampling;
  const bool has_penalties =
      s.repetition_penalty != 1 || s.presence_penalty != 0 || s.frequency_penalty != 0;
  const size_t tokens = r.prompt.size() + static_cast<size_t>(r.max_tokens);
  size_t bytes = kSequenceBytes + tokens * sizeof(int32_t) + r.cache_salt.size();
  if (has_penalties) bytes += tokens * 2 * sizeof(int32_t);  // a count of each
  bytes += r.stop_ids.size() * sizeof(int32_t) + s.logit_bias.size() * sizeof s.logit_bias[0];
  if (r.prompt_logprobs >= 0) {
    constexpr size_t kBlock = 16;  // what malloc adds
    const auto top = static_cast<size_t>(r.prompt_logprobs);
    bytes += r.prompt.size() * (sizeof(PromptLogprobs) + kBlock + top * sizeof(TokenLogprob));
  }
  return bytes;
}

}  // namespace

void LiveGenerations::add(Generation* generation) {
  std::lock_guard lock(mutex_);
  all_.insert(generation);
}

void LiveGenerations::remove(Generation* generation) {
  std::lock_guard lock(mutex_);
  all_.erase(generation);
}

void LiveGenerations::cancel_all() {
  std::lock_guard lock(mutex_);
  for (Generation* generation : all_) generation->cancel();
}

ByteShare share_of(const GenerationContext& context) { return {context.answers, kFreeBytes}; }

std::optional<ApiError> take_more(ByteShare& share, size_t bytes) {
  if (share.resize(share.bytes() + bytes)) return std::nullopt;
  const size_t total = share.budget().total();
  const std::string shown = std::to_string(total >> 20) + " MiB";
  if (share.bytes() + bytes > total + share.free()) {
    return ApiError{.message =
                        "this takes more memory than the server has for all answers (" + shown +
                        "): send less, or ask for fewer tokens, log-probabilities, prompts or "
                        "choices, or start it with a larger --request-memory"};
  }
  return ApiError{.status = 429,
                  .message = "the memory for answers (" + shown + ") is in use",
                  .code = "server_overloaded",
                  .retry_after_s = 1};
}

size_t format_bytes(const GrammarSpec& format) {
  size_t bytes = format.text.size();
  for (const std::string& choice : format.choices) bytes += sizeof choice + choice.size();
  return bytes;
}

std::string random_id(const std::string& prefix) {
  constexpr std::string_view kAlphabet =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::random_device device;
  std::uniform_int_distribution<size_t> pick(0, kAlphabet.size() - 1);
  std::string id = prefix;
  for (int i = 0; i < 24; ++i) id += kAlphabet[pick(device)];
  return id;
}

Json usage_json(const Usage& usage) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.completion_tokens},
               {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.has_reasoning) {
    json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  }
  return json;
}

Generation::Generation(const GenerationContext& context, std::shared_ptr<HttpReply> reply,
                       ByteShare held)
    : style_(context.style),
      model_(context.model),
      admission_(context.admission),
      live_(context.live),
      metrics_(context.metrics),
      reply_(std::move(reply)),
      held_(std::move(held)) {
  live_.add(this);
}

Generation::~Generation() {
  live_.remove(this);
  if (held_.bytes() > kTrimBytes) malloc_trim(0);
}

void Generation::hold(size_t bytes) {
  if (failed_) return;
  if (const auto error = take_more(held_, bytes)) fail(*error);
}

bool Generation::hold_requests(const std::vector<Request>& requests) {
  size_t bytes = 0;
  for (const Request& request : requests) {
    bytes += held_bytes(request);
    const auto tokens = static_cast<int32_t>(request.prompt.size()) + request.max_tokens;
    if (request.max_drafts > 0) bytes += static_cast<size_t>(model().engine->draft_bytes(tokens));
  }
  const auto error = take_more(held_, bytes);
  if (error) reply_->send(api_error_response(*error, style_));
  return !error;
}

void Generation::submit(std::vector<Request> requests, int32_t n, bool streamed) {
  if (!hold_requests(requests)) return;
  if (!admission_.enter(static_cast<int64_t>(requests.size()))) {
    reply_->post([self = shared_from_this()] { self->metrics_.rejected(); });
    const EngineStats stats = model_.engine->stats();
    return reply_->send(
        api_error_response({.status = 429,
                            .message = "the server is busy: all places in its queue are taken",
                            .code = "server_overloaded",
                            .retry_after_s = stats.metrics.retry_after_s(stats.num_waiting)},
                           style_));
  }
  num_running_ = requests.size();
  reply_->on_gone([self = shared_from_this()] {
    self->metrics_.client_left();
    self->cancel();
  });
  if (streamed) {
    reply_->on_quiet(kKeepAlive, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->stream(": keep-alive\n\n");
    });
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_output = [self = shared_from_this(), i](const Output& output) {
      self->reply_->post([self, i, output] { self->deliver(i, output); });
    };
  }
  const auto size = static_cast<size_t>(n);
  for (size_t first = 0; first < requests.size(); first += size) {
    const auto begin = requests.begin() + static_cast<ptrdiff_t>(first);
    std::vector<Request> group(std::make_move_iterator(begin), std::make_move_iterator(begin + n));
    const Result<bool> given = give(std::move(group));
    if (given) continue;
    for (size_t i = 0; i < size; ++i) {
      reply_->post([self = shared_from_this(), error = given.error()] { self->refuse(error); });
    }
  }
}

// As if the engine had ended one: those that went in before end the same way. Without a text:
// canceled.
void Generation::refuse(const std::string& error) {
  admission_.leave(1);
  --num_running_;
  if (error.empty()) return fail(shutting_down());
  const bool ours = error == kNoMemory || model_.engine->stats().failed;
  fail({.status = ours ? 500 : 400, .message = error});
}

// The answers to one prompt, which is computed once; but for scores, which each asks for itself. A
// failure without a text: canceled.
Result<bool> Generation::give(std::vector<Request> group) {
  // Under the lock: a cancel() from elsewhere sees either no id yet, and stops this, or all ids
  // given so far. The engine's callbacks take no lock of ours.
  std::lock_guard lock(mutex_);
  if (canceled_) return Failure{""};
  ids_.reserve(ids_.size() + group.size());
  if (group.size() > 1 && group[0].prompt_logprobs < 0) {
    const auto ids =
        unless_memory_ends([&] { return model_.engine->submit_forks(std::move(group)); });
    if (!ids) return Failure{ids.error()};
    ids_.insert(ids_.end(), ids->begin(), ids->end());
    return true;
  }
  for (size_t i = 0; i < group.size(); ++i) {
    const auto id = unless_memory_ends([&] { return model_.engine->submit(std::move(group[i])); });
    if (id) {
      ids_.push_back(*id);
      continue;
    }
    if (i == 0) return Failure{id.error()};
    // The first went in, so this one is like it: the engine has failed, or there is no memory.
    reply_->post([self = shared_from_this(), error = id.error()] { self->refuse(error); });
  }
  return true;
}

void Generation::cancel() {
  std::lock_guard lock(mutex_);
  canceled_ = true;
  for (const RequestId id : ids_) model_.engine->cancel(id);
}

void Generation::deliver(size_t index, const Output& output) {
  const bool ended = output.finish != FinishReason::kNone;
  if (ended) admission_.leave(1);
  if (ended) --num_running_;
  if (output.finish == FinishReason::kError) {
    fail({.status = output.is_bad_request ? 400 : 500, .message = output.error});
  } else if (output.finish == FinishReason::kCanceled) {
    fail(shutting_down());
  } else if (output.finish == FinishReason::kDeadline) {
    fail({.status = 504, .message = "the request was not done by its deadline"});
  }
  try {
    if (output.id >= 0) hold(kTokenBytes);
    if (!failed_) on_output(index, output);
    if (!failed_ && num_running_ == 0) on_all_ended();
  } catch (const std::bad_alloc&) {
    fail({.status = 500, .message = kNoMemory});
  }
}

void Generation::fail(const ApiError& error) {
  if (failed_) return;
  failed_ = true;
  cancel();
  if (!streaming_) return reply_->send(api_error_response(error, style_));
  reply_->write(error_event(error));
  reply_->finish();
}

std::string Generation::error_event(const ApiError& error) const {
  return "data: " + api_error_body(error, style_) + "\n\n" + kSseDone;
}

void Generation::stream(std::string data) {
  if (data.empty()) return;
  if (!streaming_) reply_->start(sse_head());
  streaming_ = true;
  reply_->write(std::move(data));
}

void Generation::end_stream(std::string data) {
  stream(std::move(data));
  reply_->finish();
}

}  // namespace nibble::server
