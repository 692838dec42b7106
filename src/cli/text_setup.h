// The text side of a model, for serve and chat: its tokenizer, its chat format (Harmony where the
// vocabulary has it, else its template), and what generation_config.json asks for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "io/hub.h"
#include "text/chat/chat_format.h"
#include "text/tokenizer/tokenizer.h"

namespace CLI {
class App;
}

namespace nibble::cli {

struct ChatFormatFlags {
  std::string chat_template;     // a file; "": the model's own format
  std::string tool_call_parser;  // vLLM's names; "": by the template
  std::string reasoning_parser;
};

void add_chat_format_flags(CLI::App& command, ChatFormatFlags& flags);

struct TextSide {
  TextSide(Tokenizer t) : tokenizer(std::move(t)) {}

  Tokenizer tokenizer;
  std::unique_ptr<ChatFormat> chat_format;  // null: plain text
  SamplingParams defaults;                  // of generation_config.json, else OpenAI's
  std::vector<int32_t> stop_ids;            // both files' eos_token_id, and the chat format's
  std::vector<int32_t> masked_ids;          // of [0, vocab_size): those without text
};

// What config.json says of it, also where that stands under text_config. Throws Error(kCheckpoint).
int32_t vocab_size_of(const ModelFiles& files);

// `vocab_size`: columns of the model's logits. Throws Error: kNotFound for a model without a
// directory or tokenizer.json, kCheckpoint for a tokenizer, template or generation_config.json that
// cannot be right, or has more ids than the model, kUsage for flags that do not fit the template.
std::unique_ptr<TextSide> load_text_side(const ModelFiles& files, int32_t vocab_size,
                                         const ChatFormatFlags& flags = {});

}  // namespace nibble::cli
