#include "server/chat_page.h"

#include "server/generation.h"

namespace nibble::server {

HttpResponse chat_page_response() {
  constexpr std::string_view kMark = "NONCE";
  const std::string nonce = random_id("");
  std::string page(kChatPage);
  for (size_t at = page.find(kMark); at != std::string::npos; at = page.find(kMark, at)) {
    page.replace(at, kMark.size(), nonce);
  }
  return {.content_type = "text/html; charset=utf-8",
          .body = std::move(page),
          .headers = {
              {"Content-Security-Policy",
               "default-src 'none'; script-src 'nonce-" + nonce + "'; style-src 'nonce-" + nonce +
                   "'; connect-src 'self'; img-src data:; base-uri 'none'; "
                   "form-action 'none'; frame-ancestors 'none'"},
              {"X-Content-Type-Options", "nosniff"},
              {"Referrer-Policy", "no-referrer"},
              {"Cache-Control", "no-cache"}}};
}

}  // namespace nibble::server
