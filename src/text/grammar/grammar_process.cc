#include "text/grammar/grammar_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "text/grammar/grammar_messages.h"

namespace nibble {
namespace {

constexpr int64_t kMeasuredEach = 64;  // answers: looking at all pages takes 0.2 ms

GrammarVocabulary read_vocabulary(GrammarReader in) {
  GrammarVocabulary vocabulary;
  vocabulary.bytes.resize(in.get<uint32_t>());
  for (std::string& bytes : vocabulary.bytes) bytes = in.text();
  return vocabulary;
}

void write(GrammarWriter& out, const GrammarSpec& spec) {
  out.put(spec.kind);
  out.put(spec.lenient);
  out.put(spec.text);
  out.put(static_cast<uint32_t>(spec.choices.size()));
  for (const std::string& choice : spec.choices) out.put(choice);
}

GrammarSpec read_spec(GrammarReader& in) {
  GrammarSpec spec;
  spec.kind = in.get<GrammarSpec::Kind>();
  spec.lenient = in.get<bool>();
  spec.text = in.text();
  spec.choices.resize(in.get<uint32_t>());
  for (std::string& choice : spec.choices) choice = in.text();
  return spec;
}

std::vector<WantedGrammar> read_wanted(GrammarReader in) {
  std::vector<WantedGrammar> wanted(in.get<uint32_t>());
  for (WantedGrammar& one : wanted) {
    one.field = in.text();
    one.spec = read_spec(in);
    if (in.get<bool>()) one.otherwise = read_spec(in);
  }
  return wanted;
}

// Pages that no other process shares.
int64_t private_bytes() {
  FILE* file = std::fopen("/proc/self/smaps_rollup", "r");
  if (file == nullptr) return 0;
  char line[128];
  long long kilobytes = 0, sum = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "Private_Dirty: %lld", &kilobytes) == 1) sum += kilobytes;
  }
  std::fclose(file);
  return sum << 10;
}

// Allocations beyond it fail, which ends what was being made.
void limit_growth(int64_t max_growth) {
  long long pages = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return;
  const int got = std::fscanf(file, "%*d %*d %*d %*d %*d %lld", &pages);
  std::fclose(file);
  if (got != 1) return;
  rlimit limit{};
  getrlimit(RLIMIT_DATA, &limit);
  limit.rlim_cur = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + max_growth);
  limit.rlim_cur = std::min(limit.rlim_cur, limit.rlim_max);
  setrlimit(RLIMIT_DATA, &limit);
}

// Where the machine runs out of memory, these go first.
void offer_to_oom_killer() {
  if (FILE* file = std::fopen("/proc/self/oom_score_adj", "w"); file != nullptr) {
    std::fputs("1000", file);
    std::fclose(file);
  }
}

// Never returns to its caller: a process ends by leaving it.
class GrammarProcess {
 public:
  GrammarProcess(int fd, int64_t max_growth) : fd_(fd), max_growth_(max_growth) {}
  [[noreturn]] void run();

 private:
  void receive(void* to, size_t size);
  void answer(GrammarHeader header, std::string_view body = {});
  void handle(const GrammarHeader& header, std::string body);
  void fork_one();
  void compile(const std::vector<WantedGrammar>& wanted);
  void send_mask(int64_t run, int64_t version);
  [[noreturn]] static void end(int status) { _exit(status); }

  int fd_;
  const int64_t max_growth_;
  int passed_fd_ = -1;  // came with the last message
  std::unique_ptr<GrammarCompiler> compiler_;
  size_t vocab_size_ = 0;
  std::vector<Grammar> grammars_;
  std::map<int64_t, GrammarRun> runs_;
  int64_t num_answers_ = 0, held_bytes_ = 0;
};

void GrammarProcess::run() {
  try {
    for (;;) {
      GrammarHeader header;
      receive(&header, sizeof header);
      std::string body(header.size, '\0');
      receive(body.data(), body.size());
      handle(header, std::move(body));
    }
  } catch (const std::exception&) {  // out of memory, or xgrammar has failed: the socket says it
    end(1);
  }
}

void GrammarProcess::receive(void* to, size_t size) {
  auto* at = static_cast<char*>(to);
  while (size > 0) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec part{.iov_base = at, .iov_len = size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
    if (n <= 0) end(0);  // the server has closed it
    if (const cmsghdr* passed = CMSG_FIRSTHDR(&message); passed != nullptr) {
      std::memcpy(&passed_fd_, CMSG_DATA(passed), sizeof passed_fd_);
    }
    at += n;
    size -= static_cast<size_t>(n);
  }
}

void GrammarProcess::answer(GrammarHeader header, std::string_view body) {
  if (num_answers_++ % kMeasuredEach == 0) held_bytes_ = private_bytes();
  header.held_bytes = held_bytes_;
  header.size = static_cast<uint32_t>(body.size());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += body;
  for (std::string_view left = bytes; !left.empty();) {
    const ssize_t n = send(fd_, left.data(), left.size(), MSG_NOSIGNAL);
    if (n <= 0) end(0);
    left.remove_prefix(static_cast<size_t>(n));
  }
}

void GrammarProcess::handle(const GrammarHeader& header, std::string body) {
  GrammarReader in(body);
  const auto run = runs_.find(header.run);
  switch (header.kind) {
    case GrammarMessage::kVocabulary: {
      const GrammarVocabulary vocabulary = read_vocabulary(in);
      vocab_size_ = vocabulary.bytes.size();
      compiler_ = std::make_unique<GrammarCompiler>(vocabulary);
      // What most schemas have in common is found in xgrammar's cache, by all copies.
      std::ignore = compiler_->compile({.kind = GrammarSpec::Kind::kJsonObject});
      return;
    }
    case GrammarMessage::kFork:
      return fork_one();
    case GrammarMessage::kCompile:
      return compile(read_wanted(in));
    case GrammarMessage::kStart: {
      std::vector<int32_t> end_ids(in.get<uint32_t>());
      for (int32_t& id : end_ids) id = in.get<int32_t>();
      const Grammar& grammar = grammars_.at(static_cast<size_t>(header.value));
      runs_.try_emplace(header.run, grammar, end_ids);
      return send_mask(header.run, header.version);
    }
    case GrammarMessage::kAccept:
      if (run == runs_.end() || !run->second.accept(static_cast<int32_t>(header.value))) end(1);
      return send_mask(header.run, header.version);
    case GrammarMessage::kRollback:
      if (run == runs_.end()) end(1);
      run->second.rollback_to(static_cast<size_t>(header.value));
      return send_mask(header.run, header.version);
    case GrammarMessage::kEnd:
      if (run != runs_.end()) runs_.erase(run);
      return;
    default:
      end(1);
  }
}

void GrammarProcess::fork_one() {
  const int fd = std::exchange(passed_fd_, -1);
  if (fd < 0) end(1);
  const pid_t pid = fork();
  if (pid != 0) {
    close(fd);  // where there is no process, the server sees its end closed
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close(fd_);
  fd_ = fd;
  limit_growth(max_growth_);
  offer_to_oom_killer();
  num_answers_ = 0;
  answer({.kind = GrammarMessage::kBorn, .value = getpid()});
}

void GrammarProcess::compile(const std::vector<WantedGrammar>& wanted) {
  std::string notes;
  for (const WantedGrammar& one : wanted) {
    Result<Grammar> grammar = compiler_->compile(one.spec);
    if (!grammar && one.otherwise) {
      notes += one.field + ": its arguments are held to JSON, not to its schema, which " +
               grammar.error() + "; ";
      grammar = compiler_->compile(*one.otherwise);
    }
    if (!grammar) {
      const auto index = static_cast<int64_t>(grammars_.size());
      return answer({.kind = GrammarMessage::kRefused, .run = index}, grammar.error());
    }
    grammars_.push_back(*std::move(grammar));
  }
  num_answers_ = 0;  // measure
  answer({.kind = GrammarMessage::kCompiled}, notes);
}

void GrammarProcess::send_mask(int64_t run, int64_t version) {
  std::vector<uint32_t> bits((vocab_size_ + 31) / 32, ~uint32_t{0});
  runs_.at(run).mask(bits);
  answer({.kind = GrammarMessage::kMask, .run = run, .version = version},
         {reinterpret_cast<const char*>(bits.data()), bits.size() * sizeof(uint32_t)});
}

// Nothing of the server's stays with it: neither its files nor what it does on signals. SIGINT from
// a terminal and SIGTERM from systemd reach all processes; the server decides when these end.
void leave_server(int fd) {
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGPIPE, SIGHUP}) {
    std::signal(signal, SIG_IGN);
  }
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_NAME, "nibble-grammar");
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  dup2(null, STDOUT_FILENO);
  if (fd > 3) syscall(SYS_close_range, 3, fd - 1, 0);
  syscall(SYS_close_range, fd + 1, ~0U, 0);
}

}  // namespace

std::string to_bytes(const GrammarVocabulary& vocabulary) {
  GrammarWriter out;
  out.put(static_cast<uint32_t>(vocabulary.bytes.size()));
  for (const std::string& bytes : vocabulary.bytes) out.put(bytes);
  return out.take();
}

std::string to_bytes(const std::vector<WantedGrammar>& wanted) {
  GrammarWriter out;
  out.put(static_cast<uint32_t>(wanted.size()));
  for (const WantedGrammar& one : wanted) {
    out.put(one.field);
    write(out, one.spec);
    out.put(one.otherwise.has_value());
    if (one.otherwise) write(out, *one.otherwise);
  }
  return out.take();
}

FirstGrammarProcess start_grammar_process(int64_t max_growth) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error(ErrorKind::kUnsupported, "the system gives no sockets for grammars");
  }
  const pid_t pid = fork();
  if (pid < 0) {
    throw Error(ErrorKind::kUnsupported, "the system gives no process for grammars");
  }
  if (pid > 0) {
    close(ends[1]);
    return {.socket = ends[0], .pid = pid};
  }
  leave_server(ends[1]);
  GrammarProcess(ends[1], max_growth).run();
}

}  // namespace nibble
