// Harmony as a chat format.
#pragma once

#include <memory>
#include <vector>

#include "text/chat/chat_format.h"
#include "text/chat/harmony.h"

namespace nibble {

class HarmonyFormat : public ChatFormat {
 public:
  // Throws where the vocabulary lacks Harmony's special tokens: Harmony::fits().
  explicit HarmonyFormat(const Tokenizer& tokenizer) : harmony_(tokenizer) {}

  Result<ChatPrompt> render(const Chat& chat, const TakeBytes& take) const override;
  using ChatFormat::render;
  std::unique_ptr<AnswerParser> parser(const ChatStreamOptions& options) const override;
  std::shared_ptr<TokenWatcher> watcher(const ChatStreamOptions& options) const override;
  std::vector<WantedGrammar> forms(const Chat& chat,
                                   const std::optional<WantedGrammar>& answer) const override;
  void take_forms(const Chat& chat, bool has_answer, std::vector<Grammar> grammars,
                  ChatStreamOptions& options) const override;
  std::vector<int32_t> stop_ids(std::vector<int32_t> of_files) const override;

 private:
  Harmony harmony_;
};

}  // namespace nibble
