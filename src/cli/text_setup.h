// The text side of a model, for serve and chat: its tokenizer, Harmony where the vocabulary has it,
// and what generation_config.json asks for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "io/hub.h"
#include "text/chat/harmony.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::cli {

struct TextSide {
  TextSide(Tokenizer t) : tokenizer(std::move(t)) {}
  TextSide(const TextSide&) = delete;  // harmony points at tokenizer

  Tokenizer tokenizer;
  std::optional<Harmony> harmony;
  SamplingParams defaults;          // of generation_config.json, OpenAI's where it is silent
  std::vector<int32_t> stop_ids;    // Harmony's, both files' eos_token_id; never Harmony's <|end|>
  std::vector<int32_t> masked_ids;  // of [0, vocab_size): those without text
};

// `vocab_size`: columns of the model's logits. Throws Error: kNotFound for a model without a
// directory or tokenizer.json, kCheckpoint for a tokenizer or generation_config.json that cannot be
// right, or has more ids than the model.
std::unique_ptr<TextSide> load_text_side(const ModelFiles& files, int32_t vocab_size);

}  // namespace nibble::cli
