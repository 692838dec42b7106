#include "server/api_error.h"

#include "server/json_fields.h"

namespace nibble::server {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

std::string api_error_body(const ApiError& error) {
  const Json body = {{"error",
                      {{"message", error.message},
                       {"type", type_of(error.status)},
                       {"param", text_or_null(error.param)},
                       {"code", text_or_null(error.code)}}}};
  return to_text(body);
}

HttpResponse api_error_response(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = api_error_body(error)};
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  return response;
}

}  // namespace nibble::server
