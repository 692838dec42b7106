#include "server/http.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "server/http_session.h"

namespace nibble::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, HttpGate gate, HttpHandler handler, HttpErrorBody error_body,
       HttpObserver observer)
      : shared_(std::make_shared<HttpShared>()), acceptor_(io_), pause_(io_) {
    shared_->options = options;
    shared_->gate = std::move(gate);
    shared_->handler = std::move(handler);
    shared_->error_body = std::move(error_body);
    shared_->observer = std::move(observer);
    shared_->held = std::make_shared<ByteBudget>(options.max_held_bytes);
    listen();
  }

  ~Impl() { stop(); }

  uint16_t port() const { return port_; }

  void start() {
    accept();
    thread_ = std::thread([this] { run(); });
  }

  void drain() {
    asio::post(io_, [this] {
      shared_->draining = true;
      for_all(&HttpSession::drain);
    });
  }

  size_t num_connections() const { return shared_->num_sessions; }

  void stop() {
    if (!thread_.joinable()) return;
    asio::post(io_, [this] {
      shared_->draining = true;
      error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      for_all(&HttpSession::close);
      io_.stop();
    });
    thread_.join();
  }

 private:
  void run() {
    for (;;) {
      try {
        io_.run();
        return;
      } catch (const std::bad_alloc&) {
        LOG_WARN("no memory was left for something that the server had to do");
      }
    }
  }

  void listen() {
    const auto& options = shared_->options;
    const std::string address = options.host + ":" + std::to_string(options.port);
    error_code ec;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, ec);
    if (ec || found.empty()) {
      throw Error(ErrorKind::kUsage,
                  "--host " + options.host + " is no address of this machine: " + ec.message());
    }
    const tcp::endpoint endpoint = *found.begin();
    acceptor_.open(endpoint.protocol(), ec);
    if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor_.bind(endpoint, ec);
    if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
    if (ec) {
      throw Error(ErrorKind::kUsage, "cannot listen on " + address + ": " + ec.message() +
                                         "; choose another --port or --host");
    }
    port_ = acceptor_.local_endpoint().port();
  }

  void accept() {
    acceptor_.async_accept([this](const error_code& ec, tcp::socket socket) {
      if (ec == asio::error::operation_aborted || !acceptor_.is_open()) return;
      if (ec) {  // no file descriptors left, most likely
        LOG_WARN("cannot accept a connection: %s", ec.message().c_str());
        pause_.expires_after(std::chrono::milliseconds(100));
        pause_.async_wait([this](const error_code& stopped) {
          if (!stopped) accept();
        });
        return;
      }
      auto session = std::make_shared<HttpSession>(std::move(socket), shared_);
      const size_t max = shared_->options.max_connections;
      if (shared_->sessions.size() > 2 * max) {
        session->close();
      } else if (shared_->sessions.size() > max) {
        session->refuse_connection();
      } else {
        session->start();
      }
      accept();
    });
  }

  // A session that closes may go away at once: walk over a copy that keeps them.
  void for_all(void (HttpSession::*f)()) {
    std::vector<std::shared_ptr<HttpSession>> all;
    for (HttpSession* session : shared_->sessions) all.push_back(session->shared_from_this());
    for (const auto& session : all) ((*session).*f)();
  }

  std::shared_ptr<HttpShared> shared_;
  asio::io_context io_{1};
  // Without connections too there is work to come: the engine's last outputs.
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  uint16_t port_ = 0;
  std::thread thread_;
};

HttpServer::HttpServer(const HttpOptions& options, HttpGate gate, HttpHandler handler,
                       HttpErrorBody error_body, HttpObserver observer)
    : impl_(std::make_unique<Impl>(options, std::move(gate), std::move(handler),
                                   std::move(error_body), std::move(observer))) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::start() { impl_->start(); }
void HttpServer::drain() { impl_->drain(); }
size_t HttpServer::num_connections() const { return impl_->num_connections(); }
void HttpServer::stop() { impl_->stop(); }

}  // namespace nibble::server
