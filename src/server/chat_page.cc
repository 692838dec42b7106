#include "server/chat_page.h"

#include <algorithm>
#include <string>

namespace nibble::server {
namespace {

constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify";

}  // namespace

std::optional<HttpResponse> chat_page_response(const HttpRequest& request) {
  const auto file =
      std::find_if(kPageFiles.begin(), kPageFiles.end(),
                   [&](const PageFile& candidate) { return candidate.path == request.path; });
  if (file == kPageFiles.end()) return std::nullopt;
  HttpResponse response{.content_type = std::string(file->content_type),
                        .headers = {{"ETag", std::string(file->etag)},
                                    {"Cache-Control", "no-cache"},  // kept, and asked about again
                                    {"Content-Security-Policy", std::string(kPolicy)},
                                    {"X-Content-Type-Options", "nosniff"},
                                    {"Referrer-Policy", "no-referrer"}}};
  if (request.header("if-none-match").find(file->etag) != std::string_view::npos) {
    response.status = 304;
    return response;
  }
  // Every browser takes gzip, so what is compressed is kept in no other form.
  if (!file->encoding.empty()) {
    response.headers.emplace_back("Content-Encoding", std::string(file->encoding));
  }
  response.body.assign(reinterpret_cast<const char*>(file->data), file->bytes);
  return response;
}

}  // namespace nibble::server
