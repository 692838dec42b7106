#include "server/grammar_service.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace nibble::server {
namespace {

using Clock = std::chrono::steady_clock;

GrammarService::Answer failed(ApiError error) {
  GrammarService::Answer answer;
  answer.error = std::move(error);
  return answer;
}

}  // namespace

GrammarService::GrammarService(std::chrono::milliseconds limit, size_t max_waiting)
    : limit_(limit),
      max_waiting_(max_waiting),
      runners_{std::thread([this] { run(); }), std::thread([this] { run(); })},
      watcher_([this] { watch(); }) {}

GrammarService::~GrammarService() { stop(); }

void GrammarService::serve(std::function<std::unique_ptr<GrammarCompiler>()> make_compiler) {
  make_compiler_ = std::move(make_compiler);
}

void GrammarService::compile(std::vector<WantedGrammar> wanted, Done done) {
  auto job = std::make_shared<Job>(Job{std::move(wanted), std::move(done), Clock::now() + limit_});
  {
    std::lock_guard lock(mutex_);
    if (!stopped_ && waiting_.size() < max_waiting_) {
      waiting_.push_back(job);
      unanswered_.push_back(std::move(job));
      wake_.notify_all();
      return;
    }
  }
  job->done(failed({.status = 503,
                    .message = "the server is busy compiling grammars",
                    .code = "server_overloaded",
                    .retry_after_s = 2}));
}

// Takes the job's answer, unless it has one.
void GrammarService::finish(Job& job, Answer answer) {
  Done done;
  {
    std::lock_guard lock(mutex_);
    done = std::exchange(job.done, nullptr);
    std::erase_if(unanswered_, [&](const auto& other) { return other.get() == &job; });
  }
  if (done) done(std::move(answer));
}

GrammarService::Answer GrammarService::compile_all(const Job& job,
                                                   const GrammarCompiler& compiler) const {
  const GrammarSpec any_object{.kind = GrammarSpec::Kind::kJsonObject};
  const auto enough = job.deadline - limit_ / 2;  // what is left is for the others
  Answer answer;
  for (const WantedGrammar& one : job.wanted) {
    const bool late = one.or_any_object && Clock::now() > enough;
    Result<Grammar> grammar = compiler.compile(late ? any_object : one.spec);
    if (late || (!grammar && one.or_any_object)) {
      LOG_WARN("%s: its arguments are held to JSON, not to its schema, which %s", one.field.c_str(),
               late ? "would have taken too long to compile" : "cannot be compiled");
    }
    if (!grammar && one.or_any_object) grammar = compiler.compile(any_object);
    if (!grammar) {
      return failed({.message = one.field + " " + grammar.error(),
                     .param = one.field,
                     .code = "invalid_grammar"});
    }
    answer.grammars.push_back(*std::move(grammar));
  }
  return answer;
}

void GrammarService::run() {
  std::unique_ptr<GrammarCompiler> compiler;
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
      if (stopped_) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (!compiler) compiler = make_compiler_();
    finish(*job, compile_all(*job, *compiler));
  }
}

void GrammarService::watch() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (unanswered_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const auto job = unanswered_.front();
    if (Clock::now() < job->deadline) {
      wake_.wait_until(lock, job->deadline);
      continue;
    }
    const bool never_begun = std::erase(waiting_, job) > 0;
    lock.unlock();
    const std::string seconds = std::to_string(limit_.count() / 1000.0).substr(0, 4);
    finish(*job, never_begun ? failed({.status = 503,
                                       .message = "the server is busy compiling other grammars",
                                       .code = "server_overloaded",
                                       .retry_after_s = 5})
                             : failed({.message = job->wanted[0].field + " took more than " +
                                                  seconds + " s to compile: make it smaller",
                                       .param = job->wanted[0].field,
                                       .code = "invalid_grammar"}));
    lock.lock();
  }
}

void GrammarService::stop() {
  std::deque<std::shared_ptr<Job>> dropped;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(waiting_);
    unanswered_.clear();
  }
  wake_.notify_all();
  for (std::thread* thread : {&runners_[0], &runners_[1], &watcher_}) {
    if (thread->joinable()) thread->join();
  }
}

}  // namespace nibble::server
