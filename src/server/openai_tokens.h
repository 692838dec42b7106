// How OpenAI's answers show tokens.
#pragma once

#include <span>
#include <string>

#include "engine/request.h"
#include "server/json_fields.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::server {

// One token as logprobs show it: {"token","logprob","bytes"}.
Json token_json(const Tokenizer& tokenizer, int32_t id, float logprob);
// One that was sampled, with "top_logprobs".
Json token_with_top_json(const Tokenizer& tokenizer, const Output& output);
// The bytes of a token as text; where they are no whole characters: "bytes:\xE2\x82".
std::string token_text(const Tokenizer& tokenizer, int32_t id);
// Arrays of JSON as text at once: a value each would take ten times the memory.
std::string ids_text(std::span<const int32_t> ids);
std::string token_texts(const Tokenizer& tokenizer, std::span<const int32_t> ids);
// JSON has no -inf.
double finite(float logprob);

const char* finish_name(FinishReason finish);

}  // namespace nibble::server
