// What a family of models makes of a chat: how it is written for the model, how the model's ids are
// read, and which ids may come next. Harmony is one, a template with a tool format and a reasoning
// format the other. Server and clients know this interface alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token_watcher.h"
#include "text/chat/chat.h"
#include "text/chat/harmony.h"
#include "text/grammar/grammar.h"
#include "text/memory_use.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble {

struct ChatStreamOptions;

inline constexpr const char* kNoRoom = "the chat takes more memory than there is for it";
// That a byte of a text takes to become ids, at most one each, in lists that grow.
inline constexpr size_t kEncodedBytes = 14;

// Follows the ids of one answer. Begin and End alternate; no text is lost.
class AnswerParser {
 public:
  virtual ~AnswerParser() = default;
  // Any id, that which ended the answer included. Events are appended.
  virtual void push(int32_t id, std::vector<ChatEvent>& events) = 0;
  virtual void finish(std::vector<ChatEvent>& events) = 0;
  virtual int64_t reasoning_tokens() const = 0;
};

class ChatFormat {
 public:
  virtual ~ChatFormat() = default;

  // The whole prompt, up to where the answer begins. A failure is a text for the caller, HTTP 400;
  // where `take` grants no more memory, kNoRoom.
  virtual Result<ChatPrompt> render(const Chat& chat, const TakeBytes& take) const = 0;
  Result<ChatPrompt> render(const Chat& chat) const {
    return render(chat, [](size_t) { return true; });
  }

  virtual std::unique_ptr<AnswerParser> parser(const ChatStreamOptions& options) const = 0;
  // Null: nothing is to be watched.
  virtual std::shared_ptr<TokenWatcher> watcher(const ChatStreamOptions& options) const = 0;

  // The grammars that the chat needs; `answer`: that of its content. Once compiled they are taken
  // into the options, in this order.
  virtual std::vector<WantedGrammar> forms(const Chat& chat,
                                           const std::optional<WantedGrammar>& answer) const = 0;
  virtual void take_forms(const Chat& chat, bool has_answer, std::vector<Grammar> grammars,
                          ChatStreamOptions& options) const = 0;

  // Ids that end an answer, given those that the model's files name.
  virtual std::vector<int32_t> stop_ids(std::vector<int32_t> of_files) const = 0;
};

// Whether the chat offers functions that may be called.
inline bool may_call(const Chat& chat) {
  return !chat.tools.empty() && chat.options.tool_choice.kind != ToolChoice::Kind::kNone;
}

}  // namespace nibble
