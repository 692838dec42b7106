#include "server/api_error.h"

#include "server/json_fields.h"

namespace nibble::server {
namespace {

const char* type_of(int status, ApiStyle style) {
  const bool anthropic = style == ApiStyle::kAnthropic;
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 413:
      return anthropic ? "request_too_large" : "invalid_request_error";
    case 503:
      return anthropic ? "overloaded_error" : "service_unavailable_error";
    case 504:
      return anthropic ? "timeout_error" : "server_error";
    default:
      if (status < 500) return "invalid_request_error";
      return anthropic ? "api_error" : "server_error";
  }
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

std::string api_error_body(const ApiError& error, ApiStyle style) {
  const char* type = type_of(error.status, style);
  if (style == ApiStyle::kAnthropic) {
    Json inner = {{"type", type}, {"message", error.message}};
    if (!error.code.empty()) inner["details"] = {{"error_code", error.code}};
    return to_text({{"type", "error"}, {"error", std::move(inner)}});
  }
  return to_text({{"error",
                   {{"message", error.message},
                    {"type", type},
                    {"param", text_or_null(error.param)},
                    {"code", text_or_null(error.code)}}}});
}

HttpResponse api_error_response(const ApiError& error, ApiStyle style) {
  HttpResponse response{.status = error.status, .body = api_error_body(error, style)};
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  return response;
}

}  // namespace nibble::server
