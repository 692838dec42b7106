// Compiles grammars and follows texts in processes (text/grammar/grammar_process.h): one for each
// set of grammars, which stays as the cache's entry, and a copy of it for each request. A thread
// hears what they answer, and ends those that take longer, or hold more, than they may; so a
// client's grammar costs that client's request, and nobody else's. Clients take turns, and of
// places to wait and to compile in none has more than it leaves to others.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/api_error.h"
#include "server/grammar_child.h"
#include "server/turn_queue.h"
#include "server/work_queue.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_process.h"

namespace nibble::server {

struct GrammarLimits {
  std::chrono::milliseconds time{5'000};  // of compilation, from compile() on, and of each mask
  size_t max_waiting = 256;               // of all clients; each as many at most as are left
  size_t max_compiling = 4;               // likewise: one client alone, half of them
  // Of all processes, as they say after each set and every 64 masks; each may take half as much
  // more until it says so. So three times as much where as many sets as may be are compiled.
  int64_t max_bytes = int64_t{1} << 30;
};

class GrammarService {
 public:
  struct Answer {
    std::vector<Grammar> grammars;  // one for each wanted; the process ends with the last of them
    std::optional<ApiError> error;
  };
  using Done = std::function<void(Answer answer)>;

  // Forks: to be made while few threads run, and before a model is loaded.
  explicit GrammarService(const GrammarLimits& limits);
  ~GrammarService();  // stop()

  // Once, before compile().
  void serve(const GrammarVocabulary& vocabulary);

  // For `client`. Calls `done` once, on a thread of the service. What takes too long is a 400.
  void compile(std::string client, std::vector<WantedGrammar> wanted, Done done);

  // Ends all processes at once, and drops what waits.
  void stop();

  struct Stats {
    int64_t held_bytes = 0;  // as max_bytes counts them
    size_t num_sets = 0;     // compiled, or being compiled
    size_t num_requests = 0;
  };
  Stats stats() const;

 private:
  using Clock = GrammarChild::Clock;
  struct Job {
    std::string client;
    std::vector<WantedGrammar> wanted;
    Done done;
    Clock::time_point deadline;
    std::string key;
  };
  // One set of grammars.
  struct Set {
    std::string key;
    std::string client;  // that had it compiled
    std::shared_ptr<GrammarChild> child;
    std::vector<WantedGrammar> wanted;
    bool is_born = false, is_compiled = false;
    bool is_relaxed = false;   // what may be any object is one
    std::string notes;         // for the log, at each use
    std::vector<Job> waiting;  // for it
    size_t num_requests = 0;   // that have copies of it
    Clock::time_point last_used;
  };
  struct Copy {
    std::shared_ptr<GrammarChild> child;
    std::shared_ptr<Set> set;
    std::optional<Job> job;  // until it is born
  };

  void run();
  bool wait();
  bool has_come(const GrammarChild& child) const;
  void take_jobs();
  void place(Job job);
  void hear();
  void hear_set(Set& set);
  bool hear_copy(Copy& copy);
  void end_late();
  void relax(Set& set);
  void end_late_set(Set& set, const std::string& why, Clock::time_point now);
  void watch(GrammarChild& child, int nice, const std::string& why, Clock::time_point now);
  bool may_compile(const std::string& client) const;
  void start_sets();
  void free_memory();
  void publish();
  void refuse(Set& set, const ApiError& error);
  void copy_for(const std::shared_ptr<Set>& set, Job job);
  std::shared_ptr<GrammarChild> fork(GrammarChild& from);
  void answer(Job& job, Answer answer);
  void fail(Job& job, ApiError error);

  const GrammarLimits limits_;
  const FirstGrammarProcess first_process_;
  std::shared_ptr<GrammarChild> first_;
  int wake_fd_;
  mutable std::mutex mutex_;  // of the next four
  std::vector<Job> new_jobs_;
  std::map<std::string, size_t> num_unplaced_;  // of clients, the new ones included
  bool stopped_ = false;
  Stats stats_;
  WorkQueue answers_;  // what follows an answer would hold up the masks of others
  // The thread's own.
  std::vector<int> ready_fds_;  // of poll(), sorted
  TurnQueue<Job> unplaced_;     // there is no process for them yet
  std::vector<std::shared_ptr<Set>> sets_;
  std::vector<Copy> copies_;
  std::thread thread_;
};

}  // namespace nibble::server
