#include "server/generation_request.h"

#include "server/json_fields.h"

namespace nibble::server {

void read_scheduling(JsonFields& fields, GenerationRequest& request) {
  constexpr double kMaxSeconds = 1e6;
  request.cache_salt = fields.string("cache_salt");
  request.max_drafts =
      static_cast<int32_t>(fields.integer("num_speculative_tokens", kMaxDrafts, 0, kMaxDrafts));
  request.priority =
      static_cast<int32_t>(fields.integer("priority", 0, -kMaxPriority, kMaxPriority));
  if (!fields.has("timeout")) return;
  const std::chrono::duration<double> time(fields.number("timeout", 0, 0, kMaxSeconds));
  request.deadline = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::steady_clock::duration>(time);
}

}  // namespace nibble::server
