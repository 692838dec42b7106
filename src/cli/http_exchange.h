// What nibble's clients over HTTP (web_client.cc, load_client.cc) share: Asio and Beast, a
// connection for each request, and bodies that are handed on as they come.
#pragma once

#include <utility>  // awaitable.hpp of Boost 1.74 needs it and does not include it

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <string>
#include <string_view>

namespace nibble::cli {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::use_awaitable;
using asio::ip::tcp;

using BodyParser = http::response_parser<http::buffer_body>;

template <typename Body>
http::request<Body> request_to(const std::string& host, http::verb verb,
                               const std::string& target) {
  http::request<Body> request(verb, target, 11);
  request.set(http::field::host, host);
  request.set(http::field::connection, "close");
  return request;
}

// The stream's time runs from here on.
inline asio::awaitable<void> connect(beast::tcp_stream& stream, std::string host, std::string port,
                                     std::chrono::seconds timeout) {
  tcp::resolver resolver(stream.get_executor());
  stream.expires_after(timeout);
  const auto addresses = co_await resolver.async_resolve(host, port, use_awaitable);
  co_await stream.async_connect(addresses, use_awaitable);
}

template <typename Stream>
asio::awaitable<void> read_head(Stream& stream, beast::flat_buffer& buffer, BodyParser& parser) {
  parser.body_limit(uint64_t{1} << 44);  // Beast's own limit is for servers
  co_await http::async_read_header(stream, buffer, parser, use_awaitable);
}

// Calls take(bytes) with each piece of the body that comes, of at most `piece_bytes`.
template <typename Stream, typename Take>
asio::awaitable<void> read_body(Stream& stream, beast::flat_buffer& buffer, BodyParser& parser,
                                size_t piece_bytes, Take take) {
  std::string piece(piece_bytes, '\0');
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    beast::error_code error;
    co_await http::async_read_some(stream, buffer, parser,
                                   asio::redirect_error(use_awaitable, error));
    if (error && error != http::error::need_buffer) throw beast::system_error(error);
    take(std::string_view(piece.data(), piece.size() - parser.get().body().size));
  }
}

}  // namespace nibble::cli
