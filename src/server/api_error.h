// An error as an OpenAI client expects it:
// {"error":{"message","type","param","code"}} with the fitting HTTP status.
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

// The error's "type" is that of its status: "invalid_request_error", "authentication_error", ...
std::string api_error_body(const ApiError& error);
HttpResponse api_error_response(const ApiError& error);

}  // namespace nibble::server
