// HTTP/1.1: listens, reads requests within limits, hands them on, writes answers whole or streamed.
// Knows nothing of what is served. All of it runs on one thread, the server's; a handler that
// takes long hands its work to another thread and answers from there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/byte_budget.h"

namespace nibble::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;     // "GET"
  std::string path;       // the target up to '?', as sent
  std::string query;      // behind '?'
  HttpHeaders headers;    // names in lower case, in order, as often as sent
  std::string peer = {};  // the address that it comes from
  std::string body = {};
  ByteShare share = {};  // of the body; it goes with the request

  // The first of that (lower-case) name, or "".
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};  // besides Content-Type, Content-Length, Connection and Date
};

// Where the answer to one request goes. Every method may be called on any thread. Dropped without
// an answer, the client gets a 500; once the client is gone all calls do nothing.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // The whole answer.
  virtual void send(HttpResponse response) = 0;

  // A streamed one: start() (its body is ignored), write()s, each sent at once, finish().
  virtual void start(HttpResponse head) = 0;
  virtual void write(std::string data) = 0;
  virtual void finish() = 0;

  // Runs f on the server's thread, in the order of the calls.
  virtual void post(std::function<void()> f) = 0;

  // Runs f once on the server's thread if the client goes away before the answer is complete; at
  // once if it has gone already. A client that closes its sending side counts as gone.
  virtual void on_gone(std::function<void()> f) = 0;
  virtual bool gone() const = 0;

  // Runs f on the server's thread whenever nothing has been written for that long, until the answer
  // is complete.
  virtual void on_quiet(std::chrono::milliseconds time, std::function<void()> f) = 0;
};

// Called when the head of a request is read and before its body is. An answer refuses the request.
// `reply_headers` go into every answer to it.
using HttpGate =
    std::function<std::optional<HttpResponse>(const HttpRequest& head, HttpHeaders& reply_headers)>;
using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<HttpReply> reply)>;
// The body of an error that HTTP itself finds (bad request line, 413, 408, ...).
using HttpErrorBody = std::function<std::string(int status, const std::string& message)>;
// Called with the head of every answer. The request's path is "" where it could not be read.
using HttpObserver =
    std::function<void(const std::string& method, const std::string& path, int status)>;

class TlsContext;

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one
  size_t max_connections = 1024;
  uint32_t max_head_bytes = 32 << 10;
  size_t max_body_bytes = 16 << 20;
  // Of all bodies until they are dealt with, and of all that clients have not read yet; the first
  // 64 KiB of each are not counted. Beyond it the largest one gives way: 503, or it is dropped.
  size_t max_held_bytes = 128 << 20;
  size_t max_unsent_bytes = 1 << 20;  // of a stream whose client does not read: it is dropped
  std::chrono::milliseconds idle_timeout{75'000};   // between requests
  std::chrono::milliseconds head_timeout{20'000};   // from the first byte to the end of the head
  std::chrono::milliseconds body_timeout{120'000};  // from the end of the head
  std::chrono::milliseconds write_timeout{60'000};  // in which nothing could be written
  std::chrono::milliseconds linger_timeout{2'000};  // reading on after a refusal, so it arrives
  std::shared_ptr<const TlsContext> tls = {};       // none: plain HTTP
};

class HttpServer {
 public:
  // Listens; connections wait for start(). Throws Error(kUsage) where the address cannot be bound.
  HttpServer(const HttpOptions& options, HttpGate gate, HttpHandler handler,
             HttpErrorBody error_body, HttpObserver observer = {});
  ~HttpServer();  // stop()

  uint16_t port() const;
  void start();  // the server's thread

  // Any thread. Closes idle connections, and others as soon as they have their answer.
  void drain();
  size_t num_connections() const;
  // Closes everything and ends the thread.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server
