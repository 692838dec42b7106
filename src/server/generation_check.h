// What is asked of a request before anything is made for it, and what it takes from the model.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "server/api_error.h"
#include "server/generation_request.h"
#include "server/served_model.h"

namespace nibble::server {

// Why n answers to each of so many prompts can never be taken at once, if so: a 400, since trying
// again would not help.
std::optional<ApiError> check_count(const Admission& admission, int64_t prompts, int64_t n);
// Why a prompt of so many tokens cannot be answered, if so; else `max_tokens` is what may be
// generated: the caller's wish, and no more than the context has room for. (Scoring a prompt, a
// wish of 0, takes no room.)
std::optional<ApiError> fit_prompt(const ServedModel& model, size_t prompt_tokens,
                                   std::optional<int64_t> wish, int32_t& max_tokens);
// Why a text of so many bytes cannot fit the context, whatever its tokens are.
std::optional<ApiError> check_text_bytes(const ServedModel& model, size_t bytes);
// Which of logit_bias and stop_token_ids has an id that the model does not, if one does.
std::optional<ApiError> check_ids(const ServedModel& model, const GenerationRequest& request);

// Who goes first is the operator's to say: a priority other than 0 needs the server's leave.
std::optional<ApiError> check_priority(bool by_priority, const GenerationRequest& request);

// The ids that end a sequence.
std::vector<int32_t> stop_ids_for(const ServedModel& model, const GenerationRequest& request);

}  // namespace nibble::server
