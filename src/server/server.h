// The routes: which request goes where, and what is asked of it before.
//
//   GET  /            the chat page             POST /v1/chat/completions
//   GET  /health      503 while loading         POST /v1/completions
//   GET  /ping        the same                  POST /tokenize, /v1/tokenize
//   GET  /version                               POST /detokenize, /v1/detokenize
//                                               POST /v1/responses
//                                               POST /v1/messages, /v1/messages/count_tokens
//   GET  /v1/models, /v1/models/NAME            GET  /metrics  Prometheus
//   GET  /load        what is under way, JSON
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "server/access.h"
#include "server/http.h"
#include "server/served_model.h"

namespace nibble::server {

struct ServerOptions {
  HttpOptions http;
  AccessRules access;
  std::string version;                   // "0.1.0"
  int64_t max_queued_requests = 256;     // sequences that wait for a place in the engine
  int64_t max_num_seqs = 16;             // places in the engine
  size_t max_answers_bytes = 128 << 20;  // kept by requests under way; 256 KiB of each are free
  bool by_priority = false;              // requests may name a priority
  // For all grammars of a request together, and for each mask of a token.
  std::chrono::milliseconds grammar_timeout{5'000};
  int64_t grammar_bytes = int64_t{1} << 30;  // GrammarLimits::max_bytes
};

// The whole server: HTTP, routes, and what is under way.
class Server {
 public:
  // Listens, and forks: to be made before a model is loaded. Throws Error(kUsage) where it cannot.
  explicit Server(const ServerOptions& options);
  ~Server();  // stop()

  uint16_t port() const;
  void start();                   // answers from now on; 503 until serve()
  void serve(ServedModel model);  // once; what it points at stays until stop()

  // Takes no more requests, waits until those under way are done, cancels what is not in time.
  void drain(std::chrono::milliseconds timeout);
  // Closes everything. The engine may go after this, and has to go before the Server does.
  void stop();

  int64_t num_active() const;  // sequences in the engine, waiting ones included

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server
