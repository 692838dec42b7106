// GET over HTTP and HTTPS for `nibble pull`: redirects followed, bytes handed on as they come.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace nibble::cli {

struct WebUrl {
  bool is_https = false;
  std::string host, port;
  std::string target;  // "/path?query"

  bool same_origin(const WebUrl& other) const {
    return is_https == other.is_https && host == other.host && port == other.port;
  }
  std::string origin() const { return (is_https ? "https://" : "http://") + host + ":" + port; }
};
// Throws Error(kUsage) for what is no http or https URL.
WebUrl parse_url(const std::string& url);
// What a Location header names, seen from `base`.
WebUrl resolve_location(const WebUrl& base, const std::string& location);

struct WebRequest {
  WebUrl url;
  std::string token;                 // sent to the URL's own origin only, wherever a redirect leads
  int64_t offset = 0;                // first byte asked for
  std::chrono::seconds timeout{60};  // in which nothing came
};

struct WebAnswer {
  int status = 0;
  int64_t offset = 0;  // of the first byte that came
  int retry_after_s = 0;
  std::string body;  // of an error, up to 64 KiB; or all of it, without a sink
};

// The connection failed or broke off: worth another try.
class WebError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Called with the pieces of a 200's or 206's body and the offset of the first byte of each.
using WebSink = std::function<void(int64_t offset, std::string_view bytes)>;

// Throws WebError, and whatever `sink` throws.
WebAnswer web_get(const WebRequest& request, const WebSink& sink = {});

}  // namespace nibble::cli
