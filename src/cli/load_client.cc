#include "cli/load_client.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/http_exchange.h"
#include "cli/sse_reader.h"

namespace nibble::cli {
namespace {

constexpr size_t kPieceBytes = 16384;
constexpr size_t kMaxErrorBytes = 400;

template <typename Body>
http::request<Body> request_of(const LoadTarget& target, http::verb verb, const std::string& path) {
  auto request = request_to<Body>(target.host + ":" + target.port, verb, target.prefix + path);
  if (!target.api_key.empty()) request.set(http::field::authorization, "Bearer " + target.api_key);
  return request;
}

// What came of one exchange so far.
class Reader {
 public:
  explicit Reader(Exchange& exchange) : exchange_(exchange) {}

  void take(std::string_view bytes) {
    if (exchange_.status != 200) {
      exchange_.error +=
          bytes.substr(0, kMaxErrorBytes - std::min(kMaxErrorBytes, exchange_.error.size()));
      return;
    }
    const bool fits = sse_.feed(bytes, [this](std::string_view event) { take_event(event); });
    if (!fits) exchange_.error = "an event has no end";
  }

  void finish() {
    if (exchange_.status == 200 && exchange_.error.empty() && !is_done_) {
      exchange_.error = "the stream ended without [DONE]";
    }
    if (exchange_.status != 200 && exchange_.error.empty()) exchange_.error = "an empty answer";
    if (!exchange_.has_usage) {
      exchange_.new_tokens = static_cast<int64_t>(exchange_.chunks_s.size());
    }
  }

 private:
  void take_event(std::string_view event) {
    if (event == "[DONE]") {
      is_done_ = true;
      return;
    }
    const StreamChunk chunk = read_chunk(event);
    if (!chunk.is_valid) exchange_.error = std::string(event.substr(0, kMaxErrorBytes));
    if (chunk.has_text) {
      const auto since = std::chrono::steady_clock::now() - exchange_.due;
      exchange_.chunks_s.push_back(std::chrono::duration<double>(since).count());
    }
    if (!chunk.has_usage) return;
    exchange_.has_usage = true;
    exchange_.prompt_tokens = chunk.prompt_tokens;
    exchange_.cached_tokens = chunk.cached_tokens;
    exchange_.new_tokens = chunk.completion_tokens;
  }

  Exchange& exchange_;
  SseReader sse_;
  bool is_done_ = false;
};

asio::awaitable<void> exchange_bytes(const LoadTarget& target, const std::string& path,
                                     const std::string& body, std::chrono::seconds timeout,
                                     Exchange& exchange, Reader& reader) {
  const auto executor = co_await asio::this_coro::executor;
  beast::tcp_stream stream(executor);
  co_await connect(stream, target.host, target.port, timeout);
  stream.socket().set_option(tcp::no_delay(true));

  auto request = request_of<http::string_body>(target, http::verb::post, path);
  request.set(http::field::content_type, "application/json");
  request.body() = body;
  request.prepare_payload();
  co_await http::async_write(stream, request, use_awaitable);

  beast::flat_buffer buffer;
  BodyParser parser;
  co_await read_head(stream, buffer, parser);
  exchange.status = parser.get().result_int();
  co_await read_body(stream, buffer, parser, kPieceBytes,
                     [&](std::string_view bytes) { reader.take(bytes); });
}

}  // namespace

LoadTarget parse_target(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) {
    throw Error(ErrorKind::kUsage, "--base-url " + url +
                                       ": it must start with http://; for https put a proxy on "
                                       "this machine, whose time then counts too");
  }
  std::string rest = url.substr(kScheme.size());
  LoadTarget target;
  const size_t slash = rest.find('/');
  if (slash != std::string::npos) target.prefix = rest.substr(slash);
  while (target.prefix.ends_with('/')) target.prefix.pop_back();
  rest = rest.substr(0, slash);
  const size_t colon = rest.rfind(':');
  if (colon != std::string::npos && rest.find(']', colon) == std::string::npos) {
    target.port = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  target.host = rest;
  const bool is_port =
      !target.port.empty() && target.port.find_first_not_of("0123456789") == std::string::npos;
  if (target.host.empty() || !is_port) {
    throw Error(ErrorKind::kUsage, "--base-url " + url + ": it must be http://HOST:PORT/v1");
  }
  return target;
}

asio::awaitable<Exchange> ask(const LoadTarget& target, std::string path, std::string body,
                              LoadTime due, std::chrono::seconds timeout) {
  Exchange exchange{.due = due};
  Reader reader(exchange);
  try {
    co_await exchange_bytes(target, path, body, timeout, exchange, reader);
    reader.finish();
  } catch (const std::exception& e) {
    reader.finish();
    exchange.error = e.what();
  }
  exchange.end_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - due).count();
  co_return exchange;
}

std::string first_model(const LoadTarget& target) {
  const std::string where = "http://" + target.host + ":" + target.port + target.prefix + "/models";
  try {
    asio::io_context io;
    beast::tcp_stream stream(io);
    stream.connect(tcp::resolver(io).resolve(target.host, target.port));
    http::write(stream, request_of<http::empty_body>(target, http::verb::get, "/models"));
    beast::flat_buffer buffer;
    http::response<http::string_body> response;
    http::read(stream, buffer, response);
    const auto models = nlohmann::json::parse(response.body(), nullptr, false);
    const nlohmann::json::json_pointer first_id("/data/0/id");
    if (models.contains(first_id) && models[first_id].is_string()) return models[first_id];
    throw Error(ErrorKind::kUnsupported, where + " answers " +
                                             std::to_string(response.result_int()) +
                                             " and names no model; say --model");
  } catch (const boost::system::system_error& e) {
    throw Error(ErrorKind::kUnsupported, where + ": " + e.code().message());
  }
}

}  // namespace nibble::cli
