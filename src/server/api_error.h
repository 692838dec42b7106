// An error as the clients of an API expect it, with the fitting HTTP status.
#pragma once

#include <string>

#include "server/http.h"

namespace nibble::server {

struct ApiError {
  int status = 400;
  std::string message = {};
  std::string param = {};  // the field at fault: "messages[2].content"; "": null
  std::string code = {};   // "context_length_exceeded"; "": null
  int retry_after_s = 0;   // with 429 and 503
};

enum class ApiStyle {
  kOpenAi,    // {"error":{"message","type","param","code"}}
  kAnthropic  // {"type":"error","error":{"type","message","details":{"error_code"}}}
};

// The error's "type" is that of its status: "invalid_request_error", "authentication_error", ...
std::string api_error_body(const ApiError& error, ApiStyle style = ApiStyle::kOpenAi);
HttpResponse api_error_response(const ApiError& error, ApiStyle style = ApiStyle::kOpenAi);

}  // namespace nibble::server
