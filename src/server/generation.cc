#include "server/generation.h"

#include <array>
#include <random>

#include "server/sse.h"

namespace nibble::server {

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

std::optional<ApiError> check_count(const Admission& admission, int64_t prompts, int64_t n) {
  if (prompts * n <= admission.limit()) return std::nullopt;
  return ApiError{.message = "this asks for " + std::to_string(prompts * n) +
                             " sequences (prompts times n); the server takes at most " +
                             std::to_string(admission.limit()) + " at once",
                  .param = prompts > admission.limit() ? "prompt" : "n"};
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
    : model_(context.model),
      admission_(context.admission),
      live_(context.live),
      reply_(std::move(reply)) {
  live_.add(this);
}

Generation::~Generation() { live_.remove(this); }

void Generation::submit(std::vector<Request> requests) {
  if (!admission_.enter(static_cast<int64_t>(requests.size()))) {
    return reply_->send(
        api_error_response({.status = 429,
                            .message = "the server is busy: all places in its queue are taken",
                            .code = "server_overloaded",
                            .retry_after_s = 1}));
  }
  num_running_ = requests.size();
  reply_->on_gone([self = shared_from_this()] { self->cancel(); });
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_output = [self = shared_from_this(), i](const Output& output) {
      self->reply_->post([self, i, output] { self->deliver(i, output); });
    };
    // Under the lock: a cancel() from elsewhere sees either no id yet, and stops this loop, or all
    // ids given so far. The engine's callbacks take no lock of ours.
    std::lock_guard lock(mutex_);
    Result<RequestId> id =
        canceled_ ? Failure{"canceled"} : model_.engine->submit(std::move(requests[i]));
    if (id) {
      ids_.push_back(*id);
      continue;
    }
    // As if the engine had ended it: the ones that went in before end the same way.
    Output refused;
    refused.finish = canceled_ ? FinishReason::kCanceled : FinishReason::kError;
    refused.error = id.error();
    reply_->post([self = shared_from_this(), i, refused] { self->deliver(i, refused); });
  }
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
    fail({.status = model_.engine->stats().failed ? 500 : 400, .message = output.error});
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
  if (!streaming_) return reply_->send(api_error_response(error));
  reply_->write("data: " + api_error_body(error) + "\n\n" + kSseDone);
  reply_->finish();
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
