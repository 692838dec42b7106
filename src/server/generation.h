// One HTTP request that generates: its sequences in the engine, their outputs in order on the
// server's thread, the end of all of them, errors, and a client that goes away.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "server/api_error.h"
#include "server/byte_budget.h"
#include "server/grammar_service.h"
#include "server/http.h"
#include "server/json_fields.h"
#include "server/metrics.h"
#include "server/served_model.h"

namespace nibble::server {

class Generation;

// Those under way, so that a shutdown can end them.
class LiveGenerations {
 public:
  void add(Generation* generation);
  void remove(Generation* generation);
  void cancel_all();

 private:
  std::mutex mutex_;
  std::unordered_set<Generation*> all_;
};

struct GenerationContext {
  const ServedModel& model;
  Admission& admission;
  LiveGenerations& live;
  GrammarService& grammars;
  ServerMetrics& metrics;
  std::shared_ptr<ByteBudget> answers;  // what requests are read with, and hold until their answer
  std::string fingerprint;              // "nibble-0.1.0"
  std::string client;                   // whose request it is
  bool by_priority = false;             // requests may name one
  ApiStyle style = ApiStyle::kOpenAi;
};

// Of the memory for answers, what one request under way holds: small ones are never refused.
ByteShare share_of(const GenerationContext& context);
// Makes `share` so much larger. Where there is no room for that nothing is changed: 400 if the
// whole budget is too small for it, else 429.
std::optional<ApiError> take_more(ByteShare& share, size_t bytes);

// Of a form that an answer has to have.
size_t format_bytes(const GrammarSpec& format);

// "chatcmpl-" and 24 random characters.
std::string random_id(const std::string& prefix);

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  bool has_reasoning = false;
};
Json usage_json(const Usage& usage);

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // `held`: what it has taken of context.answers already.
  Generation(const GenerationContext& context, std::shared_ptr<HttpReply> reply, ByteShare held);
  virtual ~Generation();

  // Gives the requests to the engine; their on_output is set here. Any thread, once. Each `n` that
  // follow one another have the same prompt. `streamed`: the answer is a stream, which is kept
  // alive by comments while nothing comes.
  void submit(std::vector<Request> requests, int32_t n, bool streamed);
  // Any thread.
  void cancel();

 protected:
  // All of these run on the server's thread. The index is that of the request in submit().
  virtual void on_output(size_t index, const Output& output) = 0;
  virtual void on_all_ended() = 0;

  // The end of a stream that cannot go on.
  virtual std::string error_event(const ApiError& error) const;

  // Counts so much more that is kept until the answer is complete. Where there is no room for it
  // the request has ended with an error.
  void hold(size_t bytes);
  bool failed() const { return failed_; }

  // For the streams of derived classes: starts the stream where it is not yet.
  void stream(std::string data);
  void end_stream(std::string data);

  const ServedModel& model() const { return model_; }
  HttpReply& reply() { return *reply_; }
  const ApiStyle style_;

 private:
  void deliver(size_t index, const Output& output);
  void refuse(const std::string& error);
  bool hold_requests(const std::vector<Request>& requests);
  Result<bool> give(std::vector<Request> group);
  void fail(const ApiError& error);

  const ServedModel& model_;
  Admission& admission_;
  LiveGenerations& live_;
  ServerMetrics& metrics_;
  std::shared_ptr<HttpReply> reply_;
  ByteShare held_;
  std::mutex mutex_;  // of ids_ and canceled_
  std::vector<RequestId> ids_;
  bool canceled_ = false;
  size_t num_running_ = 0;
  bool streaming_ = false;
  bool failed_ = false;
};

}  // namespace nibble::server
