// Compiles grammars on two threads of its own, within a time limit: one that takes longer than it
// should does not hold up the others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/api_error.h"
#include "text/grammar/grammar.h"

namespace nibble::server {

struct WantedGrammar {
  GrammarSpec spec;
  std::string field;  // of the request, for errors
  // Where the schema cannot be compiled, or not in time, any JSON object will do: OpenAI's tools
  // without "strict" promise no more.
  bool or_any_object = false;
};

class GrammarService {
 public:
  struct Answer {
    std::vector<Grammar> grammars;  // one for each wanted
    std::optional<ApiError> error;
  };
  using Done = std::function<void(Answer answer)>;

  // `limit`: from compile() to done(). What takes longer is a 400; its compilation goes on (there
  // is no way to stop it; GrammarCompiler bounds what it starts), and the next request for it finds
  // it done.
  explicit GrammarService(std::chrono::milliseconds limit, size_t max_waiting = 256);
  ~GrammarService();  // stop()

  // Once, before compile(). Each thread has a compiler, which sorts the vocabulary at the first
  // use.
  void serve(std::function<std::unique_ptr<GrammarCompiler>()> make_compiler);

  // Calls `done` once, on a thread of the service.
  void compile(std::vector<WantedGrammar> wanted, Done done);

  // Waits for what is being compiled, drops what waits.
  void stop();

 private:
  struct Job {
    std::vector<WantedGrammar> wanted;
    Done done;  // empty once it was called
    std::chrono::steady_clock::time_point deadline;
  };

  void run();    // compiles
  void watch();  // ends what is late
  Answer compile_all(const Job& job, const GrammarCompiler& compiler) const;
  void finish(Job& job, Answer answer);

  const std::chrono::milliseconds limit_;
  const size_t max_waiting_;
  std::function<std::unique_ptr<GrammarCompiler>()> make_compiler_;
  std::mutex mutex_;  // of all below
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> waiting_;
  std::deque<std::shared_ptr<Job>> unanswered_;  // by deadline
  bool stopped_ = false;
  std::thread runners_[2], watcher_;
};

}  // namespace nibble::server
