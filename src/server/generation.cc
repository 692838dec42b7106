#include "server/generation.h"

#include <array>
#include <random>

#include "server/sse.h"

namespace nibble::server {
namespace {

constexpr std::chrono::seconds kKeepAlive{15};

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

Generation::Generation(const GenerationContext& context, std::shared_ptr<HttpReply> reply)
    : style_(context.style),
      model_(context.model),
      admission_(context.admission),
      live_(context.live),
      metrics_(context.metrics),
      reply_(std::move(reply)) {
  live_.add(this);
}

Generation::~Generation() { live_.remove(this); }

void Generation::submit(std::vector<Request> requests, int32_t n, bool streamed) {
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
    const Result<bool> given = give(std::move(group), first);
    if (given) continue;
    // As if the engine had ended them: the ones that went in before end the same way.
    for (size_t i = first; i < first + size; ++i) {
      Output refused;
      refused.finish = given.error().empty() ? FinishReason::kCanceled : FinishReason::kError;
      refused.error = given.error();
      refused.is_bad_request = !model_.engine->stats().failed;
      reply_->post([self = shared_from_this(), i, refused] { self->deliver(i, refused); });
    }
  }
}

// The answers to one prompt, which is computed once; but for scores, which each asks for itself. A
// failure without a text: canceled.
Result<bool> Generation::give(std::vector<Request> group, size_t first) {
  // Under the lock: a cancel() from elsewhere sees either no id yet, and stops this, or all ids
  // given so far. The engine's callbacks take no lock of ours.
  std::lock_guard lock(mutex_);
  if (canceled_) return Failure{""};
  if (group.size() > 1 && group[0].prompt_logprobs < 0) {
    Result<std::vector<RequestId>> ids = model_.engine->submit_forks(std::move(group));
    if (!ids) return Failure{ids.error()};
    ids_.insert(ids_.end(), ids->begin(), ids->end());
    return true;
  }
  for (size_t i = 0; i < group.size(); ++i) {
    Result<RequestId> id = model_.engine->submit(std::move(group[i]));
    if (id) {
      ids_.push_back(*id);
      continue;
    }
    if (i == 0) return Failure{id.error()};
    Output refused;  // the first went in, so this one is like it: the engine has failed
    refused.finish = FinishReason::kError;
    refused.error = id.error();
    reply_->post(
        [self = shared_from_this(), index = first + i, refused] { self->deliver(index, refused); });
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
    fail({.status = 503,
          .message = "the server is shutting down",
          .code = "shutting_down",
          .retry_after_s = 5});
  } else if (output.finish == FinishReason::kDeadline) {
    fail({.status = 504, .message = "the request was not done by its deadline"});
  }
  if (failed_) return;
  on_output(index, output);
  if (num_running_ == 0) on_all_ended();
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
