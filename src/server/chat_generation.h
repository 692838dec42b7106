// A chat under way, whichever API asked: renders the prompt, compiles the grammars, submits the n
// sequences and follows their answers. What derived classes add is how an answer looks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/generation_request.h"
#include "text/chat/chat_stream.h"

namespace nibble::server {

// What is needed to run a chat, checked and rendered.
struct PreparedChat {
  ChatRequest request;  // without the messages
  ChatPrompt prompt;
  ByteShare held;  // the bytes of all this
  int32_t max_tokens = 0;
  std::vector<Grammar> grammars;  // of the format's forms
};

class ChatGeneration : public Generation {
 public:
  ChatGeneration(const GenerationContext& context, PreparedChat chat,
                 std::shared_ptr<HttpReply> reply);

  void run();

 protected:
  // One of the n answers.
  struct Choice {
    explicit Choice(ChatStream s) : stream(std::move(s)) {}

    ChatStream stream;
    FinishReason finish = FinishReason::kNone;
    int64_t num_tokens = 0;
    bool opened = false;  // for streams: their first event has been sent
  };
  // One output of the engine, and what it adds to the answer.
  struct Step {
    const Output& output;
    ChatDelta delta;
    bool is_content = false;  // the token is text of the content
  };
  // On the server's thread.
  virtual void on_step(size_t index, const Step& step) = 0;

  // "stop", "length" or "tool_calls".
  std::string_view finish_of(const Choice& choice) const {
    return choice.stream.finish_reason(choice.finish == FinishReason::kLength);
  }
  Usage usage() const;

  const ChatRequest& request() const { return chat_.request; }
  const ChatPrompt& prompt() const { return chat_.prompt; }
  std::vector<Choice>& choices() { return choices_; }

  const std::string fingerprint_;
  const int64_t created_;

 private:
  void on_output(size_t index, const Output& output) final;

  PreparedChat chat_;
  ChatStreamOptions options_;
  std::vector<Choice> choices_;
  int64_t cached_tokens_ = 0;
};

using MakeChat = std::function<std::shared_ptr<ChatGeneration>(
    const GenerationContext& context, PreparedChat chat, std::shared_ptr<HttpReply> reply)>;

template <typename T>
std::shared_ptr<ChatGeneration> make_chat(const GenerationContext& context, PreparedChat chat,
                                          std::shared_ptr<HttpReply> reply) {
  return std::make_shared<T>(context, std::move(chat), std::move(reply));
}

// Checks, renders and submits, or answers with what is wrong. Takes as long as encoding the prompt
// does; grammars that are not at hand are compiled elsewhere. What rendering takes is added to
// `work`.
void start_chat(const GenerationContext& context, ChatRequest request, const MakeChat& make,
                std::shared_ptr<HttpReply> reply, ByteShare& work);

// The prompt of a chat as the model will see it. Fills in the day.
std::optional<ApiError> render_chat(const ServedModel& model, Chat& chat, ByteShare& work,
                                    ChatPrompt& prompt);

}  // namespace nibble::server
