// The server's end of one grammar process (text/grammar/grammar_process.h): what is asked of it,
// the masks that it makes of texts, and how long it has been at the question at hand.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/grammar/grammar_messages.h"

namespace nibble::server {

// Thread-safe but where it says otherwise.
class GrammarChild {
 public:
  using Clock = std::chrono::steady_clock;
  struct Packet {
    GrammarHeader header;
    std::string body;
  };

  explicit GrammarChild(int fd) : fd_(fd) {}
  ~GrammarChild();
  GrammarChild(const GrammarChild&) = delete;
  GrammarChild& operator=(const GrammarChild&) = delete;

  // `waits`: until there is room in the socket, for messages that do not fit into it; else a
  // process that takes nothing is lost. An answer is expected unless `asks` is false.
  void tell(GrammarHeader header, std::string_view body = {}, bool waits = false, bool asks = true,
            int passed_fd = -1);

  // One text of a request. `version`: of the mask that is asked for.
  struct Text {
    std::function<void()> changed;
    std::vector<uint32_t> bits;
    int64_t version = 0;
    bool is_ready = false;
  };
  int64_t start(size_t grammar, const std::vector<int32_t>& end_ids);
  void ask(GrammarMessage what, int64_t run, int64_t value);  // kAccept or kRollback
  void end(int64_t run);
  MaskState mask_state(int64_t run) const;
  bool is_allowed(int64_t run, int32_t id) const;
  void mask(int64_t run, std::span<uint32_t> bits) const;
  void on_mask(int64_t run, std::function<void()> changed);

  std::string fault() const;
  // Ends the process, unless it has ended: what it was asked fails with `why`.
  void fail(const std::string& why);
  // Nobody asks it any more.
  void leave();

  // Of the service's thread alone:
  int fd() const { return fd_; }
  // What has come, less the masks; nothing (not an empty list): it has ended.
  std::optional<std::vector<Packet>> receive();
  // Since when it has been at what it was asked; nothing: it is idle.
  std::optional<Clock::time_point> busy_since() const;
  // Lets others have the processor first.
  void demote(int nice);
  bool is_left() const;
  int64_t held_bytes() const;

 private:
  void take_mask(const GrammarHeader& header, std::string_view body);
  void fail_locked(const std::string& why);

  const int fd_;
  std::string incoming_;  // of the service's thread
  int nice_ = 0;
  mutable std::mutex mutex_;  // of all below
  std::map<int64_t, Text> texts_;
  int64_t next_run_ = 1;
  pid_t pid_ = 0;
  int32_t num_asked_ = 0;  // and not answered
  Clock::time_point since_;
  int64_t held_bytes_ = 0;
  bool is_left_ = false;
  bool has_failed_ = false;
  std::string fault_;
};

// The grammars of one request, whose process ends with it.
std::vector<Grammar> grammars_of(std::shared_ptr<GrammarChild> child, size_t count);

}  // namespace nibble::server
