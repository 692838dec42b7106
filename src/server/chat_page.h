// The chat page: the files of src/server/ui and the libraries they use, as they were built in.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "server/http.h"

namespace nibble::server {

// All files but the page itself lie under this path.
inline constexpr std::string_view kPagePath = "/ui/";

struct PageFile {
  std::string_view path;  // "/" or "/ui/app.js"
  std::string_view content_type;
  std::string_view etag;      // of what it says, quoted
  std::string_view encoding;  // "gzip" or ""
  const unsigned char* data;
  size_t bytes;
};

extern const std::span<const PageFile> kPageFiles;

// nullopt: there is no such file. Its scripts and styles are its own files only; nothing is loaded
// from elsewhere, and no text becomes markup but what the page's sanitizer has passed.
std::optional<HttpResponse> chat_page_response(const HttpRequest& request);

}  // namespace nibble::server
