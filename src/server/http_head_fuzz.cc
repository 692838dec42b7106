// Heads of requests: what is let pass can be read in one way only, by a look at its lines.
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/http_body.h"
#include "server/http_head.h"

namespace {

namespace beast = boost::beast;

// Lines of that field, folded ones counted as many times.
int count_lines(std::string_view raw, std::string_view name) {
  int count = 0;
  for (size_t at = raw.find("\r\n"); at != raw.npos; at = raw.find("\r\n", at + 2)) {
    const std::string_view line = raw.substr(at + 2);
    const auto start = line.substr(0, name.size());
    count += beast::iequals({start.data(), start.size()}, {name.data(), name.size()}) ? 1 : 0;
  }
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  beast::http::request_parser<nibble::server::GrowingBody> parser;
  parser.header_limit(32 << 10);
  beast::error_code ec;
  const size_t num_read = parser.put({data, size}, ec);
  if (ec || !parser.is_header_done()) return 0;
  const std::string_view raw(reinterpret_cast<const char*>(data), num_read);
  const auto fault = nibble::server::find_head_fault(parser.get(), raw);
  const nibble::server::HttpRequest request = nibble::server::read_head(parser.get());
  if (fault) {
    if (fault->status < 400 || fault->status > 505) std::abort();
    return 0;
  }
  const int num_codings = count_lines(raw, "transfer-encoding:");
  if (count_lines(raw, "host:") > 1 || num_codings > 1) std::abort();
  if (raw.find("\r\n ") != raw.npos || raw.find("\r\n\t") != raw.npos) std::abort();
  if (num_codings == 0) return 0;
  const auto coding = request.header("transfer-encoding");
  if (!beast::iequals({coding.data(), coding.size()}, "chunked")) std::abort();
  if (count_lines(raw, "content-length:") > 0) std::abort();
  return 0;
}
