#include "cli/conversation.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "text/chat/chat_stream.h"

namespace nibble::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::milliseconds(20);

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// From the engine's thread to ours.
class OutputQueue {
 public:
  void push(Output output) {
    {
      std::lock_guard lock(mutex_);
      outputs_.push_back(std::move(output));
    }
    ready_.notify_one();
  }
  // All that came, at once; empty after kPoll without any.
  std::deque<Output> take() {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, kPoll, [&] { return !outputs_.empty(); });
    return std::exchange(outputs_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Output> outputs_;
};

// Adds what an event says to the turn's texts.
void record(const ChatEvent& event, Turn& turn) {
  if (event.kind != ChatEvent::Kind::kText && event.kind != ChatEvent::Kind::kStray) return;
  (event.part == ChatPart::kReasoning ? turn.reasoning : turn.content) += event.text;
}

}  // namespace

Conversation::Conversation(Engine& engine, const TextSide& text, ChatOptions options,
                           std::string system)
    : engine_(engine), text_(text) {
  CHECK(text_.chat_format != nullptr);
  chat_.options = std::move(options);
  if (!system.empty())
    chat_.messages.push_back({.role = Role::kSystem, .content = std::move(system)});
}

void Conversation::clear() {
  const bool has_system = !chat_.messages.empty() && chat_.messages[0].role == Role::kSystem;
  chat_.messages.resize(has_system ? 1 : 0);
}

Result<Turn> Conversation::say(const std::string& question, const SamplingParams& sampling,
                               int32_t max_tokens,
                               const std::function<void(const ChatEvent&)>& on_event,
                               const std::function<bool()>& canceled) {
  Chat chat = chat_;
  chat.messages.push_back({.role = Role::kUser, .content = question});
  auto prompt = text_.chat_format->render(chat);
  if (!prompt) return Failure{prompt.error()};

  const auto prompt_tokens = static_cast<int32_t>(prompt->ids.size());
  const int32_t room = engine_.max_model_len() - prompt_tokens;
  if (room <= 0) {
    return Failure{"the conversation has " + std::to_string(prompt_tokens) +
                   " tokens and the context holds " + std::to_string(engine_.max_model_len()) +
                   ": /clear starts a new one"};
  }
  auto queue = std::make_shared<OutputQueue>();
  Request request;
  request.prompt = prompt->ids;
  request.sampling = sampling;
  request.max_tokens = max_tokens > 0 ? std::min(max_tokens, room) : room;
  request.stop_ids = text_.stop_ids;
  request.on_output = [queue](const Output& output) { queue->push(output); };
  const auto asked = Clock::now();
  const auto id = engine_.submit(std::move(request));
  if (!id) return Failure{id.error()};

  Turn turn{.prompt_tokens = prompt_tokens};
  const auto parser =
      text_.chat_format->parser({.start = prompt->start, .in_reasoning = prompt->in_reasoning});
  Clock::time_point first = asked, last = asked;
  std::string failure;
  bool cancel_sent = false;
  const auto handle = [&](std::vector<ChatEvent>& events) {
    for (const ChatEvent& event : events) {
      record(event, turn);
      on_event(event);
    }
    events.clear();
  };
  std::vector<ChatEvent> events;
  while (turn.finish == FinishReason::kNone) {
    if (!cancel_sent && canceled()) {
      engine_.cancel(*id);
      cancel_sent = true;
    }
    for (const Output& output : queue->take()) {
      if (output.id >= 0) {
        last = Clock::now();
        if (turn.completion_tokens++ == 0) first = last;
        parser->push(output.id, events);
        handle(events);
      }
      turn.finish = output.finish;
      failure = output.error;
    }
  }
  parser->finish(events);
  handle(events);
  if (turn.finish == FinishReason::kError) return Failure{failure};
  turn.reasoning_tokens = parser->reasoning_tokens();
  turn.first_token_s = seconds(first - asked);
  turn.decode_s = seconds(last - first);
  chat.messages.push_back(
      {.role = Role::kAssistant, .content = turn.content, .reasoning = turn.reasoning});
  chat_ = std::move(chat);
  return turn;
}

}  // namespace nibble::cli
