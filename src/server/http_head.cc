#include "server/http_head.h"

#include <algorithm>
#include <boost/beast/core/string.hpp>

namespace nibble::server {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

// A line that begins with a space continues the one before it: obsolete line folding.
bool is_folded(std::string_view raw) {
  for (size_t at = raw.find("\r\n"); at != raw.npos; at = raw.find("\r\n", at + 2)) {
    const char next = at + 2 < raw.size() ? raw[at + 2] : '\r';
    if (next == ' ' || next == '\t') return true;
  }
  return false;
}

// host [ ":" port ], as far as what stands in it goes.
bool is_authority(beast::string_view host) {
  return std::none_of(host.begin(), host.end(), [](unsigned char c) {
    return c <= ' ' || c >= 0x7F ||
           std::string_view("\"#,/<>?@\\^`{|}").find(c) != std::string_view::npos;
  });
}

std::optional<HeadFault> find_coding_fault(const ParsedHead& head) {
  const auto value = head[http::field::transfer_encoding];
  if (head.count(http::field::transfer_encoding) == 0 || beast::iequals(value, "chunked")) {
    return std::nullopt;
  }
  const http::token_list codings{value};
  const bool is_plain =
      value.find(';') == value.npos && !value.starts_with(',') && !value.ends_with(',');
  const auto num_chunked = std::count_if(codings.begin(), codings.end(), [](const auto& coding) {
    return beast::iequals(coding, "chunked");
  });
  if (is_plain && num_chunked == 1 && value.size() > 7 &&
      beast::iequals(value.substr(value.size() - 7), "chunked")) {
    return HeadFault{501, "of Transfer-Encoding, only chunked is known"};
  }
  return HeadFault{400, "the Transfer-Encoding does not end in one \"chunked\""};
}

}  // namespace

HttpRequest read_head(const ParsedHead& head) {
  HttpRequest request;
  request.method = std::string(head.method_string());
  std::string target(head.target());
  if (const size_t authority = target.find("://");
      !target.starts_with('/') && authority != std::string::npos) {
    const size_t path = target.find('/', authority + 3);  // the absolute form: RFC 9112, 3.2.2
    target = path == std::string::npos ? "/" : target.substr(path);
  }
  const size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string::npos) request.query = target.substr(query + 1);
  for (const auto& field : head) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  return request;
}

std::optional<HeadFault> find_head_fault(const ParsedHead& head, std::string_view raw) {
  if (head.version() < 10 || head.version() > 11) return HeadFault{505, "HTTP/1.1 please"};
  if (is_folded(raw)) return HeadFault{400, "a header goes on in a second line"};
  const size_t num_hosts = head.count(http::field::host);
  if (num_hosts > 1) return HeadFault{400, "there are two Host headers"};
  if (num_hosts == 0 && head.version() == 11) return HeadFault{400, "the Host header is missing"};
  if (!is_authority(head[http::field::host])) return HeadFault{400, "the Host header is no host"};
  const bool is_coded = head.count(http::field::transfer_encoding) > 0;
  if (is_coded && head.version() == 10) {
    return HeadFault{400, "HTTP/1.0 has no Transfer-Encoding"};
  }
  if (auto fault = find_coding_fault(head)) return fault;
  const auto length = head[http::field::content_length];
  const bool has_body = is_coded || length.find_first_not_of("0") != length.npos;
  const auto method = head.method();
  if (has_body &&
      (method == http::verb::get || method == http::verb::head || method == http::verb::options)) {
    return HeadFault{400, "GET, HEAD and OPTIONS have no body"};
  }
  const auto content = head[http::field::content_encoding];
  if (!content.empty() && !beast::iequals(content, "identity")) {
    return HeadFault{415, "the body has to come as it is, without Content-Encoding"};
  }
  return std::nullopt;
}

bool has_bare_lf(std::string_view text) {
  for (size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at + 1)) {
    if (at == 0 || text[at - 1] != '\r') return true;
  }
  return false;
}

}  // namespace nibble::server
