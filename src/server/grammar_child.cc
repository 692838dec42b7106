#include "server/grammar_child.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace nibble::server {
namespace {

constexpr uint32_t kMaxAnswer = 1 << 20;  // bytes; a mask of 200,000 ids has 25 KB
constexpr char kEnded[] = "needed more memory than a grammar may have, or failed: make it smaller";

// Ends the process when the last text and the last grammar of the request are gone.
struct GrammarSession {
  explicit GrammarSession(std::shared_ptr<GrammarChild> c) : child(std::move(c)) {}
  ~GrammarSession() { child->leave(); }
  const std::shared_ptr<GrammarChild> child;
};

class RemoteMatcher final : public GrammarMatcher {
 public:
  RemoteMatcher(std::shared_ptr<const GrammarSession> session, size_t grammar,
                const std::vector<int32_t>& end_ids)
      : session_(std::move(session)), run_(session_->child->start(grammar, end_ids)) {}
  ~RemoteMatcher() override { session_->child->end(run_); }

  bool accept(int32_t id) override {
    if (!session_->child->is_allowed(run_, id)) return false;
    ++num_accepted_;
    session_->child->ask(GrammarMessage::kAccept, run_, id);
    return true;
  }
  void rollback_to(size_t count) override {
    CHECK(count <= num_accepted_);
    if (count == num_accepted_) return;
    num_accepted_ = count;
    session_->child->ask(GrammarMessage::kRollback, run_, static_cast<int64_t>(count));
  }
  size_t num_accepted() const override { return num_accepted_; }
  void mask(std::span<uint32_t> bits) override { session_->child->mask(run_, bits); }
  MaskState mask_state() const override { return session_->child->mask_state(run_); }
  std::string fault() const override {
    return "the form of the answer " + session_->child->fault();
  }
  void on_mask(std::function<void()> changed) override {
    session_->child->on_mask(run_, std::move(changed));
  }

 private:
  const std::shared_ptr<const GrammarSession> session_;
  const int64_t run_;
  size_t num_accepted_ = 0;
};

}  // namespace

GrammarChild::~GrammarChild() { close(fd_); }

void GrammarChild::tell(GrammarHeader header, std::string_view body, bool waits, bool asks,
                        int passed_fd) {
  header.size = static_cast<uint32_t>(body.size());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += body;
  const std::lock_guard lock(mutex_);
  if (has_failed_) return;
  if (asks && num_asked_++ == 0) since_ = Clock::now();
  for (std::string_view left = bytes; !left.empty();) {
    iovec part{.iov_base = const_cast<char*>(left.data()), .iov_len = left.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (passed_fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const passed = CMSG_FIRSTHDR(&message);
      passed->cmsg_level = SOL_SOCKET;
      passed->cmsg_type = SCM_RIGHTS;
      passed->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(passed), &passed_fd, sizeof passed_fd);
    }
    const ssize_t n = sendmsg(fd_, &message, MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT));
    if (n <= 0) return fail_locked(kEnded);
    left.remove_prefix(static_cast<size_t>(n));
    passed_fd = -1;
  }
}

int64_t GrammarChild::start(size_t grammar, const std::vector<int32_t>& end_ids) {
  GrammarWriter out;
  out.put(static_cast<uint32_t>(end_ids.size()));
  for (const int32_t id : end_ids) out.put(id);
  int64_t run = 0;
  {
    const std::lock_guard lock(mutex_);
    run = next_run_++;
    texts_.try_emplace(run);
  }
  tell({.kind = GrammarMessage::kStart, .run = run, .value = static_cast<int64_t>(grammar)},
       out.take());
  return run;
}

void GrammarChild::ask(GrammarMessage what, int64_t run, int64_t value) {
  GrammarHeader header{.kind = what, .run = run, .value = value};
  {
    const std::lock_guard lock(mutex_);
    Text& text = texts_.at(run);
    text.is_ready = false;
    header.version = ++text.version;
  }
  tell(header);
}

void GrammarChild::end(int64_t run) {
  {
    const std::lock_guard lock(mutex_);
    texts_.erase(run);
  }
  tell({.kind = GrammarMessage::kEnd, .run = run}, {}, /*waits=*/false, /*asks=*/false);
}

MaskState GrammarChild::mask_state(int64_t run) const {
  const std::lock_guard lock(mutex_);
  if (texts_.at(run).is_ready) return MaskState::kReady;
  return has_failed_ ? MaskState::kFailed : MaskState::kPending;
}

bool GrammarChild::is_allowed(int64_t run, int32_t id) const {
  const std::lock_guard lock(mutex_);
  const Text& text = texts_.at(run);
  const auto word = static_cast<size_t>(id) / 32;
  return text.is_ready && word < text.bits.size() && (text.bits[word] >> (id % 32) & 1) != 0;
}

void GrammarChild::mask(int64_t run, std::span<uint32_t> bits) const {
  const std::lock_guard lock(mutex_);
  const Text& text = texts_.at(run);
  CHECK(text.is_ready);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] &= i < text.bits.size() ? text.bits[i] : 0;
}

void GrammarChild::on_mask(int64_t run, std::function<void()> changed) {
  const std::lock_guard lock(mutex_);
  texts_.at(run).changed = std::move(changed);
}

std::string GrammarChild::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

void GrammarChild::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  fail_locked(why);
}

void GrammarChild::fail_locked(const std::string& why) {
  if (has_failed_) return;
  has_failed_ = true;
  fault_ = why;
  // It is at work, so it has not ended: the number is its own.
  if (pid_ > 0 && num_asked_ > 0) kill(pid_, SIGKILL);
  shutdown(fd_, SHUT_RDWR);  // an idle one ends by itself
  for (auto& [run, text] : texts_) {
    if (!text.is_ready && text.changed) text.changed();
  }
}

void GrammarChild::leave() {
  const std::lock_guard lock(mutex_);
  is_left_ = true;
  fail_locked("was given up");
}

std::optional<std::vector<GrammarChild::Packet>> GrammarChild::receive() {
  char block[1 << 16];
  bool has_ended = false;
  for (;;) {
    const ssize_t n = recv(fd_, block, sizeof block, MSG_DONTWAIT);
    if (n > 0) {
      incoming_.append(block, static_cast<size_t>(n));
      continue;
    }
    has_ended = n == 0 || (errno != EAGAIN && errno != EINTR);
    if (n == 0 || errno != EINTR) break;
  }
  std::vector<Packet> packets;
  size_t at = 0;
  while (incoming_.size() - at >= sizeof(GrammarHeader)) {
    GrammarHeader header;
    std::memcpy(&header, incoming_.data() + at, sizeof header);
    if (header.size > kMaxAnswer) has_ended = true;
    if (header.size > kMaxAnswer || incoming_.size() - at - sizeof header < header.size) break;
    const std::string_view body(incoming_.data() + at + sizeof header, header.size);
    at += sizeof header + header.size;
    {
      const std::lock_guard lock(mutex_);
      held_bytes_ = header.held_bytes;
      if (header.kind == GrammarMessage::kBorn) {
        pid_ = static_cast<pid_t>(header.value);
      } else {
        num_asked_ = std::max(num_asked_ - 1, 0);
        since_ = Clock::now();
      }
    }
    if (header.kind == GrammarMessage::kMask) {
      take_mask(header, body);
    } else {
      packets.push_back({header, std::string(body)});
    }
  }
  incoming_.erase(0, at);
  if (!has_ended) return packets;
  const std::lock_guard lock(mutex_);
  num_asked_ = 0;  // nobody is left to be killed
  fail_locked(kEnded);
  return std::nullopt;
}

void GrammarChild::take_mask(const GrammarHeader& header, std::string_view body) {
  const std::lock_guard lock(mutex_);
  const auto at = texts_.find(header.run);
  if (at == texts_.end() || at->second.version != header.version || has_failed_) return;
  Text& text = at->second;
  text.bits.resize(body.size() / sizeof(uint32_t));
  std::memcpy(text.bits.data(), body.data(), text.bits.size() * sizeof(uint32_t));
  text.is_ready = true;
  if (text.changed) text.changed();
}

std::optional<GrammarChild::Clock::time_point> GrammarChild::busy_since() const {
  const std::lock_guard lock(mutex_);
  if (num_asked_ == 0 || has_failed_) return std::nullopt;
  return since_;
}

void GrammarChild::demote(int nice) {
  const std::lock_guard lock(mutex_);
  if (nice <= nice_ || pid_ == 0 || num_asked_ == 0) return;
  nice_ = nice;
  setpriority(PRIO_PROCESS, static_cast<id_t>(pid_), nice);
}

bool GrammarChild::is_left() const {
  const std::lock_guard lock(mutex_);
  return is_left_;
}

int64_t GrammarChild::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return has_failed_ ? 0 : held_bytes_;
}

std::vector<Grammar> grammars_of(std::shared_ptr<GrammarChild> child, size_t count) {
  const auto session = std::make_shared<const GrammarSession>(std::move(child));
  std::vector<Grammar> grammars;
  for (size_t i = 0; i < count; ++i) {
    grammars.emplace_back([session, i](const std::vector<int32_t>& end_ids) {
      return std::make_unique<RemoteMatcher>(session, i, end_ids);
    });
  }
  return grammars;
}

}  // namespace nibble::server
