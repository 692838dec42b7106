// The chat page, src/server/ui/chat.html, as it was built in.
#pragma once

#include <string_view>

#include "server/http.h"

namespace nibble::server {

extern const std::string_view kChatPage;

// Its scripts and styles run by a nonce made for this answer; nothing is loaded from elsewhere.
HttpResponse chat_page_response();

}  // namespace nibble::server
