// The head of a request: from the parser's form to the handlers', and what RFC 9110 and 9112 forbid
// in it that the parser lets pass.
#pragma once

#include <boost/beast/http/message.hpp>
#include <optional>
#include <string_view>

#include "server/http.h"

namespace nibble::server {

using ParsedHead = boost::beast::http::request_header<>;

// Without the body.
HttpRequest read_head(const ParsedHead& head);

// `raw`: the head's bytes, to the empty line. Two readers of one connection (a proxy, and this)
// that take such a head differently would disagree about where the next request begins.
struct HeadFault {
  int status;
  const char* message;
};
std::optional<HeadFault> find_head_fault(const ParsedHead& head, std::string_view raw);

// Whether a line ends in LF without CR.
bool has_bare_lf(std::string_view text);

}  // namespace nibble::server
