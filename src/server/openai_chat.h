// POST /v1/chat/completions.
#pragma once

#include <memory>

#include "server/generation.h"
#include "server/http.h"
#include "server/openai_types.h"

namespace nibble::server {

// Renders, submits and answers. Takes as long as encoding the prompt does.
void start_chat(const GenerationContext& context, ChatRequest request,
                std::shared_ptr<HttpReply> reply);

// The prompt of a chat as the model will see it.
Result<HarmonyPrompt> render_chat(const ServedModel& model, Chat chat);

// Why a prompt of so many tokens cannot be answered, if so; else `max_tokens` is what may be
// generated: the caller's wish, and no more than the context has room for. (Scoring a prompt, a
// wish of 0, takes no room.)
std::optional<ApiError> fit_prompt(const ServedModel& model, size_t prompt_tokens,
                                   std::optional<int64_t> wish, int32_t& max_tokens);
// Why a text of so many bytes cannot fit the context, whatever its tokens are.
std::optional<ApiError> check_text_bytes(const ServedModel& model, size_t bytes);
// Which of logit_bias and stop_token_ids has an id that the model does not, if one does.
std::optional<ApiError> check_ids(const ServedModel& model, const GenerationRequest& request);

// The ids that end a sequence.
std::vector<int32_t> stop_ids_for(const ServedModel& model, const GenerationRequest& request);

// One token as OpenAI's logprobs show it: {"token","logprob","bytes"}.
Json token_json(const Tokenizer& tokenizer, int32_t id, float logprob);
// The bytes of a token as text; where they are no whole characters: "bytes:\xE2\x82".
std::string token_text(const Tokenizer& tokenizer, int32_t id);
// JSON has no -inf.
double finite(float logprob);

const char* finish_name(FinishReason finish);

}  // namespace nibble::server
