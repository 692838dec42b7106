// One connection: bytes in, requests out; answers in, bytes out. Lives on the server's thread.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

#include "server/byte_budget.h"
#include "server/http.h"
#include "server/http_body.h"
#include "server/tls.h"

namespace nibble::server {

class HttpSession;

// What all connections share.
struct HttpShared {
  HttpOptions options;
  HttpGate gate;
  HttpHandler handler;
  HttpErrorBody error_body;
  HttpObserver observer;
  std::unordered_set<HttpSession*> sessions;
  std::atomic<size_t> num_sessions{0};
  std::shared_ptr<ByteBudget> held;  // bodies until they are dealt with, and what waits to be read
  bool draining = false;
};

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Duration = std::chrono::milliseconds;
  HttpSession(Socket socket, std::shared_ptr<HttpShared> shared);
  ~HttpSession();

  void start();
  void refuse_connection();  // there are too many: 503
  void drain();
  void close();  // at once

  // Of the exchange that is open; calls for another one do nothing.
  void send(uint64_t exchange, const HttpResponse& response);
  void start_stream(uint64_t exchange, const HttpResponse& head);
  void write(uint64_t exchange, const std::string& data);
  void finish(uint64_t exchange);
  void on_gone(uint64_t exchange, std::function<void()> f);
  void on_quiet(uint64_t exchange, Duration time, std::function<void()> f);
  void dropped(uint64_t exchange);  // by its handler, unanswered

  boost::asio::any_io_executor executor() { return socket_.get_executor(); }

 private:
  using Parser = boost::beast::http::request_parser<GrowingBody>;
  enum class State { kIdle, kHead, kBody, kBusy, kLingering, kClosed };

  void read_some();
  void on_readable(const boost::system::error_code& ec);
  bool receive();
  bool receive_tls();
  void on_input();
  bool parse_some();                   // false: more bytes are needed, or none are wanted
  bool on_head(std::string_view raw);  // false: refused
  void on_request();
  void parse_failed(const boost::system::error_code& ec);
  void refuse(const HttpResponse& response);  // answers without reading the rest of the request
  void refuse(int status, const std::string& message);
  void refuse_for_room();
  bool hold(ByteShare& share, size_t bytes);
  size_t num_given_up() const;  // bytes that give_way() would free
  void give_way();

  enum class Framing { kLength, kChunks, kNone };
  void queue_head(const HttpResponse& head, Framing framing);
  void flush();
  void wait_writable();
  void answered();
  void out_of_memory();
  void set_deadline(Duration d);
  void on_deadline();
  void linger();
  void wait_quiet();
  size_t num_unsent() const { return out_.size() + wire_.size() - num_written_; }

  Socket socket_;
  std::shared_ptr<HttpShared> shared_;
  boost::asio::steady_timer deadline_;        // of what is awaited from the client
  boost::asio::steady_timer write_deadline_;  // of what the client is to take
  boost::asio::steady_timer quiet_;           // since the last write
  boost::beast::flat_buffer buffer_;
  std::unique_ptr<TlsChannel> tls_;  // none: plain HTTP
  std::optional<Parser> parser_;
  HttpRequest request_;
  HttpHeaders reply_headers_;
  State state_ = State::kIdle;
  std::string out_;            // still to be written
  std::string wire_;           // the same, encrypted
  size_t num_written_ = 0;     // bytes of them that are away
  std::string method_, path_;  // of the request that is answered
  uint64_t exchange_ = 0;
  ByteShare body_share_;    // of a body that arrives
  ByteShare unsent_share_;  // of what waits to be written
  std::shared_ptr<std::atomic<bool>> gone_;
  std::function<void()> on_gone_;
  std::function<void()> on_quiet_;
  Duration quiet_time_{0};
  bool reading_ = false;
  bool writing_ = false;  // waits for the socket to become writable
  bool parsing_ = false;  // inside on_input()
  bool open_ = false;     // the exchange is not answered yet
  bool streaming_ = false;
  bool chunked_ = false;
  bool keep_alive_ = false;
  bool no_body_ = false;  // HEAD
  bool close_when_written_ = false;
  bool linger_when_written_ = false;
};

}  // namespace nibble::server
