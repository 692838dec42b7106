// Conversation: a chat with one model in this process, a turn at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "cli/text_setup.h"
#include "engine/engine.h"
#include "text/chat/chat.h"

namespace nibble::cli {

struct Turn {
  std::string content;
  std::string reasoning;
  FinishReason finish = FinishReason::kNone;
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  double first_token_s = 0;  // from the question to the first token
  double decode_s = 0;       // from the first token to the last
};

class Conversation {
 public:
  // The engine is started; both outlive the conversation. `text` has a chat format. `system`: the
  // developer's instructions, or empty.
  Conversation(Engine& engine, const TextSide& text, ChatOptions options, std::string system);

  // Asks, and blocks until the answer is complete or canceled() has said so (it is asked about
  // every 20 ms). What was said up to then stays in the history. A failure (context full, engine
  // down) is a text for the user and leaves the history as it was.
  // max_tokens 0: as much as the context has room for.
  Result<Turn> say(const std::string& question, const SamplingParams& sampling, int32_t max_tokens,
                   const std::function<void(const ChatEvent&)>& on_event,
                   const std::function<bool()>& canceled);

  void clear();  // keeps the instructions
  ChatOptions& options() { return chat_.options; }

 private:
  Engine& engine_;
  const TextSide& text_;
  Chat chat_;
};

}  // namespace nibble::cli
