#include "server/grammar_service.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/log.h"

namespace nibble::server {
namespace {

constexpr std::chrono::milliseconds kTick{20};  // while anything may become late
constexpr std::chrono::milliseconds kQuick{100};
constexpr int kCompilingNice = 5, kMaskingNice = 19;  // of what is not quick
constexpr size_t kMaxSets = 64;
constexpr char kNoProcess[] = "the machine has no process for a grammar";

ApiError busy(std::string message, int retry_after_s) {
  return {.status = 503,
          .message = std::move(message),
          .code = "server_overloaded",
          .retry_after_s = retry_after_s};
}

ApiError bad_grammar(const WantedGrammar& wanted, const std::string& why) {
  return {.message = wanted.field + " " + why, .param = wanted.field, .code = "invalid_grammar"};
}

std::string seconds(std::chrono::milliseconds time) {
  return std::to_string(static_cast<double>(time.count()) / 1000.0).substr(0, 4) + " s";
}

}  // namespace

GrammarService::GrammarService(const GrammarLimits& limits)
    : limits_(limits),
      first_process_(start_grammar_process(limits.max_bytes / 2)),
      first_(std::make_shared<GrammarChild>(first_process_.socket)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      answers_(1, 2 * limits.max_waiting),
      thread_([this] { run(); }) {}

GrammarService::~GrammarService() {
  stop();
  close(wake_fd_);
}

void GrammarService::serve(const GrammarVocabulary& vocabulary) {
  first_->tell({.kind = GrammarMessage::kVocabulary}, to_bytes(vocabulary), /*waits=*/true,
               /*asks=*/false);
}

void GrammarService::compile(std::string client, std::vector<WantedGrammar> wanted, Done done) {
  std::string key = to_bytes(wanted);
  Job job{std::move(client), std::move(wanted), std::move(done), Clock::now() + limits_.time,
          std::move(key)};
  {
    const std::lock_guard lock(mutex_);
    size_t all = 0;
    for (const auto& [of, n] : num_unplaced_) all += n;
    size_t& own = num_unplaced_[job.client];
    if (!stopped_ && all + own < limits_.max_waiting) {
      ++own;
      new_jobs_.push_back(std::move(job));
      eventfd_write(wake_fd_, 1);
      return;
    }
  }
  fail(job, busy("the server is busy compiling grammars", 2));
}

void GrammarService::answer(Job& job, Answer answer) {
  auto shared = std::make_shared<Answer>(std::move(answer));
  answers_.push(0, [done = std::exchange(job.done, nullptr), shared] { done(std::move(*shared)); });
}

void GrammarService::fail(Job& job, ApiError error) {
  Answer failed;
  failed.error = std::move(error);
  answer(job, std::move(failed));
}

void GrammarService::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true)) return;
  }
  eventfd_write(wake_fd_, 1);
  thread_.join();
  answers_.stop();
  kill(first_process_.pid, SIGKILL);  // with it go those that compile
  waitpid(first_process_.pid, nullptr, 0);
}

void GrammarService::run() {
  while (wait()) {
    take_jobs();
    hear();
    end_late();
    free_memory();
    start_sets();
    publish();
  }
  const auto end = [](GrammarChild& child) { child.fail("was given up: the server is stopping"); };
  for (const Copy& copy : copies_) end(*copy.child);
  for (const auto& set : sets_) end(*set->child);
  end(*first_);
}

// Until there is something to do; false: no more.
bool GrammarService::wait() {
  std::vector<pollfd> fds{{.fd = wake_fd_, .events = POLLIN, .revents = 0}};
  bool may_be_late = !unplaced_.empty();
  const auto add = [&](const GrammarChild& child) {
    fds.push_back({.fd = child.fd(), .events = POLLIN, .revents = 0});
    may_be_late |= child.busy_since().has_value();
  };
  for (const auto& set : sets_) {
    add(*set->child);
    may_be_late |= !set->waiting.empty();
  }
  for (const Copy& copy : copies_) {
    add(*copy.child);
    may_be_late |= copy.job.has_value();
  }
  // Texts ask while this waits: their processes are looked at now and then.
  const auto timeout = may_be_late || !copies_.empty() ? kTick : std::chrono::milliseconds(1'000);
  poll(fds.data(), fds.size(), static_cast<int>(timeout.count()));
  ready_fds_.clear();
  for (const pollfd& one : fds) {
    if (one.revents != 0) ready_fds_.push_back(one.fd);
  }
  std::sort(ready_fds_.begin(), ready_fds_.end());
  eventfd_t count = 0;
  eventfd_read(wake_fd_, &count);
  const std::lock_guard lock(mutex_);
  return !stopped_;
}

bool GrammarService::has_come(const GrammarChild& child) const {
  return std::binary_search(ready_fds_.begin(), ready_fds_.end(), child.fd());
}

void GrammarService::take_jobs() {
  std::vector<Job> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs.swap(new_jobs_);
  }
  for (Job& job : jobs) place(std::move(job));
}

// With the set that it wants, or in its client's line.
void GrammarService::place(Job job) {
  const auto set = std::find_if(sets_.begin(), sets_.end(),
                                [&](const auto& other) { return other->key == job.key; });
  if (set == sets_.end()) {
    const std::string client = job.client;
    return unplaced_.push(client, std::move(job));
  }
  if ((*set)->is_compiled) return copy_for(*set, std::move(job));
  (*set)->waiting.push_back(std::move(job));
}

// Of each what has come.
void GrammarService::hear() {
  for (const auto& set : sets_) {
    if (has_come(*set->child)) hear_set(*set);
  }
  std::erase_if(sets_, [](const auto& set) { return set->child == nullptr; });
  for (size_t i = 0; i < copies_.size();) {
    if (!has_come(*copies_[i].child) || hear_copy(copies_[i])) {
      ++i;
      continue;
    }
    --copies_[i].set->num_requests;
    copies_.erase(copies_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void GrammarService::hear_set(Set& set) {
  const auto packets = set.child->receive();
  if (!packets) {
    return refuse(
        set, set.is_born ? bad_grammar(set.wanted[0], set.child->fault()) : busy(kNoProcess, 5));
  }
  for (const GrammarChild::Packet& packet : *packets) {
    if (packet.header.kind == GrammarMessage::kBorn) {
      set.is_born = true;
      set.child->tell({.kind = GrammarMessage::kCompile}, to_bytes(set.wanted), /*waits=*/true);
    } else if (packet.header.kind == GrammarMessage::kCompiled) {
      set.notes += packet.body;
      set.is_compiled = true;
      const auto self = *std::find_if(sets_.begin(), sets_.end(),
                                      [&](const auto& other) { return other.get() == &set; });
      for (Job& job : std::exchange(set.waiting, {})) copy_for(self, std::move(job));
    } else if (packet.header.kind == GrammarMessage::kRefused) {
      const auto index = static_cast<size_t>(packet.header.run);
      return refuse(set, bad_grammar(set.wanted.at(index), packet.body));
    }
  }
}

// Those who wait for the set get the error, and it goes.
void GrammarService::refuse(Set& set, const ApiError& error) {
  for (Job& job : set.waiting) fail(job, error);
  set.waiting.clear();
  set.child->leave();
  set.child = nullptr;
}

// False: the process has ended.
bool GrammarService::hear_copy(Copy& copy) {
  const auto packets = copy.child->receive();
  if (packets && !packets->empty() && copy.job) {
    Answer compiled;
    compiled.grammars = grammars_of(copy.child, copy.job->wanted.size());
    answer(*copy.job, std::move(compiled));
    copy.job.reset();
  }
  if (!packets && copy.job) fail(*copy.job, busy(kNoProcess, 5));
  return packets.has_value();
}

void GrammarService::end_late() {
  const auto now = Clock::now();
  unplaced_.drop_late(
      [&](const Job& job) { return job.deadline <= now; },
      [&](Job& job) { fail(job, busy("the server is busy compiling other grammars", 5)); });
  const std::string too_long = "took more than " + seconds(limits_.time);
  for (const auto& set : sets_) {
    watch(*set->child, kCompilingNice, too_long + " to compile: make it smaller", now);
    if (!set->is_compiled) end_late_set(*set, too_long + " to compile: make it smaller", now);
  }
  std::erase_if(sets_, [](const auto& set) { return set->child == nullptr; });
  for (Copy& copy : copies_) {
    watch(*copy.child, kMaskingNice, too_long + " for one token: make it simpler", now);
    if (!copy.job || copy.job->deadline > now) continue;
    fail(*copy.job, busy(kNoProcess, 5));
    copy.job.reset();
    copy.child->leave();
  }
}

void GrammarService::end_late_set(Set& set, const std::string& why, Clock::time_point now) {
  std::erase_if(set.waiting, [&](Job& job) {
    const bool is_late = job.deadline <= now;
    if (is_late) fail(job, bad_grammar(set.wanted[0], why));
    return is_late;
  });
  if (!set.waiting.empty() && set.waiting[0].deadline - limits_.time / 2 < now) relax(set);
  if (!set.waiting.empty()) return;
  if (set.child) set.child->leave();  // nobody waits for it any more
  set.child = nullptr;
}

// Compiles the set again with what will do instead: half of the time is over.
void GrammarService::relax(Set& set) {
  if (std::exchange(set.is_relaxed, true)) return;
  bool any = false;
  for (WantedGrammar& one : set.wanted) {
    if (!one.otherwise) continue;
    one.spec = *one.otherwise;
    any = true;
  }
  if (!any) return;
  set.notes =
      "the arguments of tools are held to JSON, not to their schemas, which would have taken too "
      "long to compile";
  set.child->leave();
  set.child = fork(*first_);
  set.is_born = false;
  if (set.child) return;
  for (Job& job : set.waiting) fail(job, busy(kNoProcess, 5));
  set.waiting.clear();
}

void GrammarService::watch(GrammarChild& child, int nice, const std::string& why,
                           Clock::time_point now) {
  const auto since = child.busy_since();
  if (!since) return;
  if (now - *since > kQuick) child.demote(nice);
  if (now - *since > limits_.time) child.fail(why);
}

// A client that has none may take any place, and one that has some leaves one for others.
bool GrammarService::may_compile(const std::string& client) const {
  size_t all = 0, own = 0;
  for (const auto& set : sets_) {
    if (set->is_compiled) continue;
    ++all;
    own += set->client == client;
  }
  return all + (own > 0) < limits_.max_compiling;
}

// For those who wait, as many at once as may be.
void GrammarService::start_sets() {
  while (auto job =
             unplaced_.take([&](const std::string& client) { return may_compile(client); })) {
    const bool is_known = std::any_of(sets_.begin(), sets_.end(),
                                      [&](const auto& set) { return set->key == job->key; });
    if (!is_known) {
      auto set = std::make_shared<Set>();
      set->key = job->key;
      set->client = job->client;
      set->wanted = job->wanted;
      set->child = fork(*first_);
      if (!set->child) {
        fail(*job, busy(kNoProcess, 5));
        continue;
      }
      set->last_used = Clock::now();
      sets_.push_back(std::move(set));
    }
    place(std::move(*job));
  }
}

void GrammarService::copy_for(const std::shared_ptr<Set>& set, Job job) {
  if (!set->notes.empty()) LOG_WARN("%s", set->notes.c_str());
  auto child = fork(*set->child);
  if (!child) return fail(job, busy(kNoProcess, 5));
  set->last_used = Clock::now();
  ++set->num_requests;
  copies_.push_back({.child = std::move(child), .set = set, .job = std::move(job)});
}

// Null where there are no sockets. What has a socket and no process has ended, as that says.
std::shared_ptr<GrammarChild> GrammarService::fork(GrammarChild& from) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    LOG_ERROR("no sockets are left for grammars");
    return nullptr;
  }
  const timeval patience{.tv_sec = 2, .tv_usec = 0};
  setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  auto child = std::make_shared<GrammarChild>(ends[0]);
  from.tell({.kind = GrammarMessage::kFork}, {}, /*waits=*/true, /*asks=*/false, ends[1]);
  close(ends[1]);
  return child;
}

// Sets that nobody uses go, the longest unused first; then, of what is in use, the largest.
void GrammarService::free_memory() {
  for (;;) {
    int64_t held = 0;
    for (const auto& set : sets_) held += set->child->held_bytes();
    for (const Copy& copy : copies_) held += copy.child->held_bytes();
    if (held <= limits_.max_bytes && sets_.size() <= kMaxSets) return;
    std::shared_ptr<Set> oldest;
    for (const auto& set : sets_) {
      const bool is_idle = set->is_compiled && set->num_requests == 0;
      if (is_idle && (!oldest || set->last_used < oldest->last_used)) oldest = set;
    }
    if (oldest) {
      oldest->child->leave();
      std::erase(sets_, oldest);
      continue;
    }
    if (held <= limits_.max_bytes) return;
    std::shared_ptr<GrammarChild> largest;
    const auto look_at = [&](const std::shared_ptr<GrammarChild>& child) {
      if (!largest || child->held_bytes() > largest->held_bytes()) largest = child;
    };
    for (const Copy& copy : copies_) look_at(copy.child);
    for (const auto& set : sets_) look_at(set->child);
    largest->fail("held the most of more memory than grammars may have together");
  }
}

void GrammarService::publish() {
  const std::lock_guard lock(mutex_);
  num_unplaced_.clear();
  unplaced_.count([&](const std::string& client, size_t n) { num_unplaced_[client] = n; });
  for (const Job& job : new_jobs_) ++num_unplaced_[job.client];
  stats_ = {.held_bytes = 0, .num_sets = sets_.size(), .num_requests = copies_.size()};
  for (const auto& set : sets_) stats_.held_bytes += set->child->held_bytes();
  for (const Copy& copy : copies_) stats_.held_bytes += copy.child->held_bytes();
}

GrammarService::Stats GrammarService::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace nibble::server
