#include "server/generation_check.h"

#include <algorithm>

namespace nibble::server {
namespace {

// In OpenAI's words and in Anthropic's, by which LiteLLM and Claude Code know what to do about it.
ApiError too_long(const ServedModel& model, const std::string& tokens) {
  const std::string context = std::to_string(model.engine->max_model_len());
  return {.message = "This model's maximum context length is " + context +
                     " tokens; prompt is too long: " + tokens + " tokens > " + context + " maximum",
          .param = "messages",
          .code = "context_length_exceeded"};
}

}  // namespace

std::optional<ApiError> check_count(const Admission& admission, int64_t prompts, int64_t n) {
  if (prompts * n <= admission.limit()) return std::nullopt;
  return ApiError{.message = "this asks for " + std::to_string(prompts * n) +
                             " sequences (prompts times n); the server takes at most " +
                             std::to_string(admission.limit()) + " at once",
                  .param = prompts > admission.limit() ? "prompt" : "n"};
}

std::optional<ApiError> fit_prompt(const ServedModel& model, size_t prompt_tokens,
                                   std::optional<int64_t> wish, int32_t& max_tokens) {
  const int64_t room = model.engine->max_model_len() - static_cast<int64_t>(prompt_tokens);
  if (room < std::min<int64_t>(1, wish.value_or(1)))
    return too_long(model, std::to_string(prompt_tokens));
  max_tokens = static_cast<int32_t>(std::min(room, wish.value_or(room)));
  return std::nullopt;
}

std::optional<ApiError> check_text_bytes(const ServedModel& model, size_t bytes) {
  const auto context = static_cast<size_t>(model.engine->max_model_len());
  if (model.max_token_bytes == 0 || bytes / model.max_token_bytes <= context) return std::nullopt;
  return too_long(model, "at least " + std::to_string(bytes / model.max_token_bytes));
}

std::optional<ApiError> check_ids(const ServedModel& model, const GenerationRequest& request) {
  const int32_t size = model.engine->model().info().vocab_size;
  const auto unknown = [size](const char* field, int32_t id) {
    return ApiError{.message = std::string(field) + " has the id " + std::to_string(id) +
                               "; ids of this model are 0 to " + std::to_string(size - 1),
                    .param = field};
  };
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    if (id >= size) return unknown("logit_bias", id);
  }
  for (const int32_t id : request.stop_token_ids) {
    if (id >= size) return unknown("stop_token_ids", id);
  }
  return std::nullopt;
}

std::optional<ApiError> check_priority(bool by_priority, const GenerationRequest& request) {
  if (by_priority || request.priority == 0) return std::nullopt;
  return ApiError{.message =
                      "priority is for servers that are started with --scheduling-policy priority; "
                      "this one serves who came first",
                  .param = "priority"};
}

std::vector<int32_t> stop_ids_for(const ServedModel& model, const GenerationRequest& request) {
  std::vector<int32_t> ids = request.stop_token_ids;
  if (!request.ignore_eos) ids.insert(ids.end(), model.stop_ids.begin(), model.stop_ids.end());
  return ids;
}

}  // namespace nibble::server
