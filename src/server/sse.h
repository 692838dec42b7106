// Server-sent events as OpenAI streams them: "data: JSON\n\n", at the end "data: [DONE]\n\n".
#pragma once

#include <string>

#include "server/http.h"
#include "server/json_fields.h"

namespace nibble::server {

inline constexpr const char* kSseDone = "data: [DONE]\n\n";

inline std::string sse_event(const Json& data) { return "data: " + to_text(data) + "\n\n"; }

// As Anthropic and /v1/responses have it: named by the "type" of its data.
inline std::string sse_named_event(const Json& data) {
  return "event: " + data["type"].get<std::string>() + "\n" + sse_event(data);
}

// The head of a stream; nothing on the way is to hold it back.
inline HttpResponse sse_head() {
  return {.content_type = "text/event-stream; charset=utf-8",
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
}

}  // namespace nibble::server
