#include "cli/web_client.h"

#include <openssl/ssl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <optional>

#include "base/error.h"
#include "cli/http_exchange.h"

namespace nibble::cli {
namespace {

constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kMaxErrorBytes = 64 << 10;
constexpr size_t kMaxTextBytes = 64 << 20;
constexpr int kMaxRedirects = 8;

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// The library's own place for certificates is Debian's; other systems have theirs elsewhere.
void trust_system(asio::ssl::context& context) {
  context.set_default_verify_paths();
  for (const char* file : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                           "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
    if (std::getenv("SSL_CERT_FILE") != nullptr || access(file, R_OK) != 0) continue;
    context.load_verify_file(file);
    return;
  }
}

http::request<http::empty_body> request_of(const WebRequest& request, const WebUrl& url) {
  const bool is_default = url.port == (url.is_https ? "443" : "80");
  auto head = request_to<http::empty_body>(is_default ? url.host : url.host + ":" + url.port,
                                           http::verb::get, url.target);
  head.set(http::field::user_agent, "nibble");
  head.set(http::field::accept_encoding, "identity");
  if (!request.token.empty() && url.same_origin(request.url)) {
    head.set(http::field::authorization, "Bearer " + request.token);
  }
  if (request.offset > 0) {
    head.set(http::field::range, "bytes=" + std::to_string(request.offset) + "-");
  }
  return head;
}

// "bytes 100-199/200" gives 100.
int64_t range_start(const std::string& text) {
  int64_t start = 0;
  const size_t digit = text.find_first_of("0123456789");
  if (digit != std::string::npos) {
    std::from_chars(text.data() + digit, text.data() + text.size(), start);
  }
  return start;
}

struct Fetched {
  WebAnswer answer;
  std::string location;
};

template <typename Stream>
asio::awaitable<void> exchange(Stream& stream, const WebRequest& request, const WebUrl& url,
                               const WebSink& sink, Fetched& out) {
  auto& socket = beast::get_lowest_layer(stream);
  auto head = request_of(request, url);
  co_await http::async_write(stream, head, use_awaitable);
  beast::flat_buffer buffer;
  BodyParser parser;
  co_await read_head(stream, buffer, parser);
  const auto& fields = parser.get();
  WebAnswer& answer = out.answer;
  answer.status = fields.result_int();
  out.location = std::string(fields[http::field::location]);
  if (is_redirect(answer.status)) co_return;
  answer.offset =
      answer.status == 206 ? range_start(std::string(fields[http::field::content_range])) : 0;
  answer.retry_after_s =
      static_cast<int>(range_start(std::string(fields[http::field::retry_after])));
  const bool is_good = answer.status == 200 || answer.status == 206;
  const bool to_sink = is_good && sink;
  int64_t at = answer.offset;
  socket.expires_after(request.timeout);
  co_await read_body(stream, buffer, parser, kPieceBytes, [&](std::string_view bytes) {
    socket.expires_after(request.timeout);
    if (to_sink) {
      sink(at, bytes);
    } else if (answer.body.size() + bytes.size() <= (is_good ? kMaxTextBytes : kMaxErrorBytes)) {
      answer.body += bytes;
    } else if (is_good) {
      throw WebError("the answer is longer than 64 MiB");
    }
    at += static_cast<int64_t>(bytes.size());
  });
}

asio::awaitable<void> fetch(const WebRequest& request, const WebUrl& url, const WebSink& sink,
                            Fetched& out) {
  const auto executor = co_await asio::this_coro::executor;
  if (!url.is_https) {
    beast::tcp_stream stream(executor);
    co_await connect(stream, url.host, url.port, request.timeout);
    co_await exchange(stream, request, url, sink, out);
    co_return;
  }
  asio::ssl::context context(asio::ssl::context::tls_client);
  trust_system(context);
  beast::ssl_stream<beast::tcp_stream> stream(executor, context);
  stream.set_verify_mode(asio::ssl::verify_peer);
  stream.set_verify_callback(asio::ssl::host_name_verification(url.host));
  SSL_set_tlsext_host_name(stream.native_handle(), url.host.c_str());
  co_await connect(beast::get_lowest_layer(stream), url.host, url.port, request.timeout);
  co_await stream.async_handshake(asio::ssl::stream_base::client, use_awaitable);
  co_await exchange(stream, request, url, sink, out);
}

Fetched fetch_once(const WebRequest& request, const WebUrl& url, const WebSink& sink) {
  Fetched out;
  std::exception_ptr failure;
  asio::io_context io;
  asio::co_spawn(io, fetch(request, url, sink, out),
                 [&](std::exception_ptr e) { failure = std::move(e); });
  io.run();
  if (!failure) return out;
  try {
    std::rethrow_exception(failure);
  } catch (const boost::system::system_error& e) {
    if (e.code().category() == asio::error::get_ssl_category()) {  // no better the next time
      throw Error(ErrorKind::kNotFound, url.origin() + ": " + e.code().message());
    }
    throw WebError(url.origin() + ": " + e.code().message());
  }
}

}  // namespace

WebUrl parse_url(const std::string& url) {
  WebUrl parts;
  std::string rest;
  if (url.starts_with("https://")) {
    parts = {.is_https = true, .host = {}, .port = "443", .target = {}};
    rest = url.substr(8);
  } else if (url.starts_with("http://")) {
    parts = {.is_https = false, .host = {}, .port = "80", .target = {}};
    rest = url.substr(7);
  }
  const size_t path = rest.find_first_of("/?");
  parts.target = path == std::string::npos ? "/" : rest.substr(path);
  if (parts.target.front() == '?') parts.target.insert(0, "/");
  parts.target.erase(std::min(parts.target.find('#'), parts.target.size()));
  rest = rest.substr(0, path);
  const size_t colon = rest.rfind(':');
  if (colon != std::string::npos && rest.find(']', colon) == std::string::npos) {
    parts.port = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  parts.host = rest;
  const bool is_port =
      !parts.port.empty() && parts.port.find_first_not_of("0123456789") == std::string::npos;
  const auto is_text = [](unsigned char c) { return c > ' ' && c != 0x7f; };
  const bool is_clean = std::all_of(url.begin(), url.end(), is_text);
  if (parts.host.empty() || parts.host.find('@') != std::string::npos || !is_port || !is_clean) {
    throw Error(ErrorKind::kUsage, "'" + url + "' is no URL: http://HOST or https://HOST");
  }
  return parts;
}

WebUrl resolve_location(const WebUrl& base, const std::string& location) {
  if (location.starts_with("//")) {
    return parse_url((base.is_https ? "https:" : "http:") + location);
  }
  if (!location.starts_with('/')) return parse_url(location);
  WebUrl url = base;
  url.target = parse_url(base.origin() + location).target;
  return url;
}

WebAnswer web_get(const WebRequest& request, const WebSink& sink) {
  WebUrl url = request.url;
  for (int i = 0; i <= kMaxRedirects; ++i) {
    Fetched fetched = fetch_once(request, url, sink);
    if (!is_redirect(fetched.answer.status)) return std::move(fetched.answer);
    WebUrl next = resolve_location(url, fetched.location);
    if (url.is_https && !next.is_https) throw WebError(url.origin() + ": leads away from https");
    url = std::move(next);
  }
  throw WebError(request.url.origin() + ": leads from place to place without end");
}

}  // namespace nibble::cli
