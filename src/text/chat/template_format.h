// A chat format of a model's own template, with a tool format and a reasoning format.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/chat/chat_format.h"
#include "text/chat/chat_template.h"
#include "text/chat/tool_format.h"

namespace nibble {

class TemplateFormat : public ChatFormat {
 public:
  // `literals`: bos_token and the like, as ChatTemplate has them. Throws Error(kCheckpoint) where a
  // conversation of one question cannot be rendered.
  TemplateFormat(const Tokenizer& tokenizer, ChatTemplate chat_template, AnswerMarkup markup,
                 std::vector<std::pair<std::string, std::string>> literals);

  // Special tokens are those that the template spells; in messages they are text.
  Result<ChatPrompt> render(const Chat& chat, const TakeBytes& take) const override;
  using ChatFormat::render;
  std::unique_ptr<AnswerParser> parser(const ChatStreamOptions& options) const override;
  std::shared_ptr<TokenWatcher> watcher(const ChatStreamOptions& options) const override;
  std::vector<WantedGrammar> forms(const Chat& chat,
                                   const std::optional<WantedGrammar>& answer) const override;
  void take_forms(const Chat& chat, bool has_answer, std::vector<Grammar> grammars,
                  ChatStreamOptions& options) const override;
  std::vector<int32_t> stop_ids(std::vector<int32_t> of_files) const override;

  const AnswerMarkup& markup() const { return markup_; }

 private:
  std::vector<int32_t> ids_of(const std::vector<TemplatePiece>& pieces) const;

  Tokenizer tokenizer_;
  ChatTemplate template_;
  AnswerMarkup markup_;
  std::vector<std::pair<std::string, std::string>> literals_;
};

// What Hugging Face's tokenizer_config.json says of special tokens: eos_token and so on, a string
// or an object with "content".
std::vector<std::pair<std::string, std::string>> template_literals(
    std::string_view tokenizer_config, const std::string& origin);

// The template of a model directory's text: tokenizer_config.json's "chat_template", a string or a
// list of {"name", "template"}, of which "tool_use" or else "default" is taken. "": it has none.
std::string template_of_config(std::string_view tokenizer_config, const std::string& origin);

}  // namespace nibble
