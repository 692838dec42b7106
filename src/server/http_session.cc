#include "server/http_session.h"

#include <algorithm>
#include <array>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <cstdio>
#include <ctime>

#include "base/log.h"
#include "server/http_head.h"

namespace nibble::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kReadBytes = 16 << 10;
// Read ahead of a request under way: pipelined requests. A client that sends more is dropped: its
// end would be behind what nobody reads.
constexpr size_t kMaxAheadBytes = 64 << 10;
// Of a body, and of what a client has not read yet: free of the budget.
constexpr size_t kFreeBytes = 64 << 10;

bool iequals(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

// "Sat, 21 Nov 2026 13:00:00 GMT"
std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  gmtime_r(&now, &tm);
  std::array<char, 64> text{};
  const size_t n = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &tm);
  return std::string(text.data(), n);
}

// The handler's end of one exchange. Holds the session alive.
class Exchange final : public HttpReply {
 public:
  Exchange(std::shared_ptr<HttpSession> session, uint64_t id,
           std::shared_ptr<std::atomic<bool>> gone)
      : session_(std::move(session)), id_(id), gone_(std::move(gone)) {}

  // May run on any thread: the session goes along, so that its end comes on the server's.
  ~Exchange() override {
    const auto executor = session_->executor();
    asio::post(executor, [session = std::move(session_), id = id_] { session->dropped(id); });
  }

  void send(HttpResponse response) override {
    run([response = std::move(response)](HttpSession& s, uint64_t id) { s.send(id, response); });
  }
  void start(HttpResponse head) override {
    run([head = std::move(head)](HttpSession& s, uint64_t id) { s.start_stream(id, head); });
  }
  void write(std::string data) override {
    run([data = std::move(data)](HttpSession& s, uint64_t id) { s.write(id, data); });
  }
  void finish() override {
    run([](HttpSession& s, uint64_t id) { s.finish(id); });
  }
  void on_gone(std::function<void()> f) override {
    run([f = std::move(f)](HttpSession& s, uint64_t id) mutable { s.on_gone(id, std::move(f)); });
  }
  void post(std::function<void()> f) override { asio::post(session_->executor(), std::move(f)); }
  bool gone() const override { return *gone_; }
  void on_quiet(std::chrono::milliseconds time, std::function<void()> f) override {
    run([time, f = std::move(f)](HttpSession& s, uint64_t id) mutable {
      s.on_quiet(id, time, std::move(f));
    });
  }

 private:
  template <typename F>
  void run(F f) {
    asio::dispatch(session_->executor(),
                   [session = session_, id = id_, f = std::move(f)]() mutable {
                     try {
                       f(*session, id);
                     } catch (const std::bad_alloc&) {
                       session->close();
                     }
                   });
  }

  std::shared_ptr<HttpSession> session_;
  const uint64_t id_;
  std::shared_ptr<std::atomic<bool>> gone_;
};

}  // namespace

HttpSession::HttpSession(Socket socket, std::shared_ptr<HttpShared> shared)
    : socket_(std::move(socket)),
      shared_(std::move(shared)),
      deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()),
      quiet_(socket_.get_executor()),
      body_share_(shared_->held, kFreeBytes),
      unsent_share_(shared_->held, kFreeBytes) {
  if (shared_->options.tls) tls_ = std::make_unique<TlsChannel>(*shared_->options.tls);
  shared_->sessions.insert(this);
  shared_->num_sessions = shared_->sessions.size();
}

HttpSession::~HttpSession() {
  shared_->sessions.erase(this);
  shared_->num_sessions = shared_->sessions.size();
}

void HttpSession::start() {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  set_deadline(shared_->options.idle_timeout);
  read_some();
}

void HttpSession::refuse_connection() {
  error_code ignored;
  socket_.non_blocking(true, ignored);
  refuse({.status = 503,
          .body = shared_->error_body(503, "too many connections"),
          .headers = {{"Retry-After", "1"}}});
}

void HttpSession::drain() {
  if (state_ == State::kIdle) return close();
  keep_alive_ = false;
}

void HttpSession::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  shared_->sessions.erase(this);
  shared_->num_sessions = shared_->sessions.size();
  error_code ignored;
  socket_.close(ignored);
  deadline_.cancel();
  write_deadline_.cancel();
  quiet_.cancel();
  on_quiet_ = nullptr;
  parser_.reset();
  body_share_.clear();
  out_ = wire_ = {};
  num_written_ = 0;
  unsent_share_.clear();
  if (gone_) *gone_ = true;
  open_ = false;
  if (const auto f = std::exchange(on_gone_, nullptr)) f();
}

// ---- input

// Waits first: a connection that says nothing has no buffer.
void HttpSession::read_some() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kBusy && buffer_.size() >= kMaxAheadBytes) {
    LOG_WARN("a client sends more requests before their answers than are read ahead: dropped");
    return close();
  }
  reading_ = true;
  if (buffer_.size() == 0) buffer_ = {};
  socket_.async_wait(Socket::wait_read,
                     [self = shared_from_this()](const error_code& ec) { self->on_readable(ec); });
}

void HttpSession::on_readable(const error_code& waited) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (waited) return close();
  try {
    if (receive()) on_input();
  } catch (const std::bad_alloc&) {
    out_of_memory();
  }
  read_some();
}

// Into buffer_. False: closed.
bool HttpSession::receive() {
  if (tls_) return receive_tls();
  error_code ec;
  buffer_.commit(socket_.read_some(buffer_.prepare(kReadBytes), ec));
  if (ec == asio::error::would_block || ec == asio::error::try_again) return true;
  if (ec) return close(), false;  // the end of the stream too
  if (state_ == State::kLingering) buffer_.consume(buffer_.size());
  return true;
}

bool HttpSession::receive_tls() {
  std::array<char, kReadBytes> bytes;
  error_code ec;
  const size_t n = socket_.read_some(asio::buffer(bytes), ec);
  if (ec == asio::error::would_block || ec == asio::error::try_again) return true;
  if (ec) return close(), false;
  std::string plain;
  const bool goes_on = tls_->receive({bytes.data(), n}, plain, wire_);
  buffer_.commit(asio::buffer_copy(buffer_.prepare(plain.size()), asio::buffer(plain)));
  flush();
  if (!goes_on) close();  // an alert, garbage, or the client's close_notify
  if (state_ == State::kLingering) buffer_.consume(buffer_.size());
  return state_ != State::kClosed;
}

void HttpSession::on_input() {
  if (parsing_) return;  // an answer given inside the loop below
  parsing_ = true;
  while (parse_some()) {
  }
  parsing_ = false;
}

bool HttpSession::parse_some() {
  if (state_ == State::kIdle) {
    // An empty line before a request is to be skipped (RFC 9112, 2.2).
    while (buffer_.size() > 0) {
      const char c = *static_cast<const char*>(buffer_.data().data());
      if (c != '\r' && c != '\n') break;
      buffer_.consume(1);
    }
    if (buffer_.size() == 0) return false;
    parser_.emplace();
    method_.clear();
    path_.clear();
    parser_->header_limit(shared_->options.max_head_bytes);
    parser_->body_limit(shared_->options.max_body_bytes);
    state_ = State::kHead;
    set_deadline(shared_->options.head_timeout);
  }
  if ((state_ != State::kHead && state_ != State::kBody) || buffer_.size() == 0) return false;
  error_code ec;
  const std::string_view bytes(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  const size_t num_read = parser_->put(buffer_.data(), ec);
  buffer_.consume(num_read);
  if (ec == http::error::need_more) {
    // Chunk headers and trailers have no limit of their own, and wait for their CR.
    if (buffer_.size() > shared_->options.max_head_bytes)
      ec = http::error::header_limit;
    else if (state_ == State::kBody && has_bare_lf(bytes.substr(num_read)))
      ec = http::error::bad_chunk;
    else
      return false;
  }
  if (ec) return parse_failed(ec), false;
  if (state_ == State::kHead && parser_->is_header_done()) {
    const bool goes_on = on_head(bytes.substr(0, num_read));  // the parser takes a head whole
    if (!goes_on) return state_ == State::kIdle;  // refused, but there is no body to skip
  } else if (state_ == State::kBody && !hold(body_share_, parser_->get().body().capacity())) {
    return refuse_for_room(), false;
  }
  if (parser_->is_done()) on_request();
  return state_ != State::kClosed;
}

bool HttpSession::on_head(std::string_view raw) {
  state_ = State::kBody;
  const auto& head = parser_->get();
  request_ = read_head(head);
  error_code ignored;
  request_.peer = socket_.remote_endpoint(ignored).address().to_string();
  method_ = request_.method;
  path_ = request_.path;
  reply_headers_.clear();
  no_body_ = request_.method == "HEAD";
  keep_alive_ = parser_->keep_alive() && !shared_->draining;
  chunked_ = head.version() >= 11;
  if (const auto fault = find_head_fault(head, raw)) {
    return refuse(fault->status, fault->message), false;
  }
  if (auto refusal = shared_->gate(request_, reply_headers_)) {
    if (!parser_->is_done()) return refuse(*refusal), false;
    state_ = State::kBusy;
    open_ = true;
    return send(++exchange_, *refusal), false;
  }
  const std::string_view expect = request_.header("expect");
  if (!expect.empty() && head.version() >= 11) {
    if (!iequals(expect, "100-continue")) {
      return refuse(417, "only 100-continue can be expected"), false;
    }
    if (!parser_->is_done() && buffer_.size() == 0) {
      out_ += "HTTP/1.1 100 Continue\r\n\r\n";
      flush();
    }
  }
  set_deadline(shared_->options.body_timeout);
  return state_ != State::kClosed;
}

void HttpSession::on_request() {
  request_.body = std::move(parser_->get().body());
  request_.share = std::exchange(body_share_, ByteShare(shared_->held, kFreeBytes));
  state_ = State::kBusy;
  deadline_.cancel();
  open_ = true;
  streaming_ = false;
  gone_ = std::make_shared<std::atomic<bool>>(false);
  auto reply = std::make_shared<Exchange>(shared_from_this(), ++exchange_, gone_);
  shared_->handler(std::move(request_), std::move(reply));
}

void HttpSession::parse_failed(const error_code& ec) {
  keep_alive_ = false;
  if (ec == http::error::header_limit) {
    return refuse(431, "the head of the request is larger than " +
                           std::to_string(shared_->options.max_head_bytes) + " bytes");
  }
  if (ec == http::error::body_limit) {
    return refuse(413, "the body is larger than " +
                           std::to_string(shared_->options.max_body_bytes) + " bytes");
  }
  if (ec == http::error::bad_version) return refuse(505, "HTTP/1.1 please");
  refuse(400, "this is not HTTP: " + ec.message());
}

void HttpSession::refuse(int status, const std::string& message) {
  refuse({.status = status, .body = shared_->error_body(status, message)});
}

void HttpSession::refuse_for_room() {
  refuse({.status = 503,
          .body = shared_->error_body(503, "too many large requests at once"),
          .headers = {{"Retry-After", "1"}}});
}

// What is left of the request is not read as a next one: the connection ends. Closed at once, the
// bytes still coming in would reset it and the client might never see the answer.
void HttpSession::refuse(const HttpResponse& response) {
  state_ = State::kBusy;
  parser_.reset();
  body_share_.clear();
  keep_alive_ = false;
  open_ = true;
  linger_when_written_ = true;
  send(++exchange_, response);
}

void HttpSession::linger() {
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  state_ = State::kLingering;
  buffer_.consume(buffer_.size());
  set_deadline(shared_->options.linger_timeout);
  read_some();
}

void HttpSession::set_deadline(Duration d) {
  deadline_.expires_after(d);
  deadline_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (!ec && self->deadline_.expiry() <= std::chrono::steady_clock::now()) self->on_deadline();
  });
}

void HttpSession::on_deadline() {
  if (state_ != State::kHead && state_ != State::kBody) {
    if (state_ != State::kBusy) close();
    return;
  }
  refuse(408, "the request took too long to arrive");
}

// Who holds the most makes room for it. False: that is this session.
bool HttpSession::hold(ByteShare& share, size_t bytes) {
  while (!share.resize(bytes)) {
    HttpSession* most = this;
    for (HttpSession* other : shared_->sessions) {
      if (other->num_given_up() > most->num_given_up()) most = other;
    }
    if (most == this) return false;
    const auto keep = most->shared_from_this();
    most->give_way();
  }
  return true;
}

size_t HttpSession::num_given_up() const { return body_share_.bytes() + unsent_share_.bytes(); }

void HttpSession::give_way() {
  if (state_ == State::kBody) return refuse_for_room();
  LOG_WARN("a client reads its answer too slowly while memory is short: dropped");
  close();
}

void HttpSession::out_of_memory() {
  LOG_WARN("a request was refused: no memory is left for it");
  parsing_ = false;
  parser_.reset();
  if (state_ != State::kHead && state_ != State::kBody) return close();
  refuse(503, "no memory is left for this request");
}

// ---- output

void HttpSession::queue_head(const HttpResponse& head, Framing framing) {
  if (shared_->observer) shared_->observer(method_, path_, head.status);
  const std::string status = std::to_string(head.status);
  out_ += "HTTP/1.1 " + status + " ";
  out_ += std::string(http::obsolete_reason(static_cast<http::status>(head.status)));
  out_ += "\r\nDate: " + http_date();
  if (!head.content_type.empty()) out_ += "\r\nContent-Type: " + head.content_type;
  if (framing == Framing::kLength) {
    out_ += "\r\nContent-Length: " + std::to_string(head.body.size());
  } else if (framing == Framing::kChunks) {
    out_ += "\r\nTransfer-Encoding: chunked";
  }
  for (const HttpHeaders* headers : {&std::as_const(reply_headers_), &head.headers})
    for (const auto& [name, value] : *headers)
      out_.append("\r\n").append(name).append(": ").append(value);
  out_ += keep_alive_ ? "\r\nConnection: keep-alive\r\n\r\n" : "\r\nConnection: close\r\n\r\n";
}

void HttpSession::send(uint64_t exchange, const HttpResponse& response) {
  if (exchange != exchange_ || !open_ || streaming_) return;
  const bool bodiless = response.status == 204 || response.status == 304;
  queue_head(response, bodiless ? Framing::kNone : Framing::kLength);
  if (!no_body_ && !bodiless) out_ += response.body;
  answered();
}

void HttpSession::start_stream(uint64_t exchange, const HttpResponse& head) {
  if (exchange != exchange_ || !open_ || streaming_) return;
  streaming_ = true;
  if (!chunked_) keep_alive_ = false;  // HTTP/1.0: the end of the connection is the end
  queue_head(head, chunked_ ? Framing::kChunks : Framing::kNone);
  flush();
}

void HttpSession::write(uint64_t exchange, const std::string& data) {
  if (exchange != exchange_ || !open_ || !streaming_ || data.empty() || no_body_) return;
  if (chunked_) {
    std::array<char, 24> size{};
    std::snprintf(size.data(), size.size(), "%zx\r\n", data.size());
    out_ += size.data();
  }
  out_ += data;
  if (chunked_) out_ += "\r\n";
  flush();
  if (on_quiet_) wait_quiet();
  if (num_unsent() > shared_->options.max_unsent_bytes) {
    LOG_WARN("a client does not read its stream: dropped");
    close();
  }
}

void HttpSession::finish(uint64_t exchange) {
  if (exchange != exchange_ || !open_ || !streaming_) return;
  if (chunked_ && !no_body_) out_ += "0\r\n\r\n";
  answered();
}

void HttpSession::on_gone(uint64_t exchange, std::function<void()> f) {
  if (exchange != exchange_) return;
  if (state_ == State::kClosed && gone_ && *gone_) return f();
  if (open_) on_gone_ = std::move(f);
}

void HttpSession::on_quiet(uint64_t exchange, Duration time, std::function<void()> f) {
  if (exchange != exchange_ || !open_) return;
  on_quiet_ = std::move(f);
  quiet_time_ = time;
  wait_quiet();
}

void HttpSession::wait_quiet() {
  quiet_.expires_after(quiet_time_);
  quiet_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (ec || !self->open_ || !self->on_quiet_) return;
    const auto f = self->on_quiet_;  // what it writes starts the next wait
    f();
  });
}

void HttpSession::dropped(uint64_t exchange) {
  if (exchange != exchange_ || !open_) return;
  if (streaming_) return close();  // cut off: the client must not take it for whole
  send(exchange, {.status = 500, .body = shared_->error_body(500, "the request was not answered")});
}

void HttpSession::answered() {
  open_ = false;
  on_gone_ = nullptr;
  on_quiet_ = nullptr;
  quiet_.cancel();
  if (!keep_alive_ && !linger_when_written_) close_when_written_ = true;
  flush();
  if (state_ != State::kBusy || !keep_alive_) return;
  state_ = State::kIdle;
  set_deadline(shared_->options.idle_timeout);
  if (parsing_) return;
  on_input();
  read_some();
}

void HttpSession::flush() {
  if (writing_ || state_ == State::kClosed) return;
  const bool closing = !open_ && (linger_when_written_ || close_when_written_);
  if (tls_ && !out_.empty()) {
    if (!tls_->send(out_, wire_)) return close();
    out_.clear();
    if (out_.capacity() > kMaxAheadBytes) out_.shrink_to_fit();
  }
  if (tls_ && closing && state_ != State::kLingering) tls_->close(wire_);
  std::string& bytes = tls_ ? wire_ : out_;
  error_code ec;
  while (num_written_ < bytes.size() && !ec) {
    num_written_ += socket_.write_some(
        asio::buffer(bytes.data() + num_written_, bytes.size() - num_written_), ec);
  }
  // What is away goes in large pieces: each moves all that is left.
  if (num_written_ == bytes.size() || num_written_ > bytes.size() / 2) {
    bytes.erase(0, std::exchange(num_written_, 0));
    if (bytes.capacity() > 2 * bytes.size() + kMaxAheadBytes) bytes.shrink_to_fit();
  }
  const bool waits = ec == asio::error::would_block || ec == asio::error::try_again;
  if (ec && !waits) return close();
  if (!hold(unsent_share_, bytes.capacity())) return give_way();
  if (waits) return wait_writable();
  if (linger_when_written_ && !open_) {
    if (state_ != State::kLingering) linger();
  } else if (close_when_written_) {
    error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    state_ = State::kLingering;  // until the client closes too
    set_deadline(shared_->options.linger_timeout);
  }
}

void HttpSession::wait_writable() {
  writing_ = true;
  write_deadline_.expires_after(shared_->options.write_timeout);
  write_deadline_.async_wait([self = shared_from_this()](const error_code& ec) {
    if (!ec && self->writing_ &&
        self->write_deadline_.expiry() <= std::chrono::steady_clock::now()) {
      self->close();
    }
  });
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const error_code& ec) {
    self->writing_ = false;
    self->write_deadline_.cancel();
    if (!ec) self->flush();
  });
}

}  // namespace nibble::server
