// What the server answers with: a running engine and the text side of its model.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/chat/chat_format.h"
#include "text/tokenizer/tokenizer.h"

namespace nibble::server {

struct ServedModel {
  Engine* engine = nullptr;  // started
  const Tokenizer* tokenizer = nullptr;
  const ChatFormat* chat_format = nullptr;  // null: a model of plain text, without chats
  std::vector<std::string> names;           // the first is the one shown
  std::string root;                         // where it was loaded from
  bool is_text_part = false;                // of a model that sees images, which nibble does not
  SamplingParams defaults;                  // of generation_config.json
  std::vector<int32_t> stop_ids;
  std::string current_date;    // "2026-11-21", fixed; "": the day of the request
  int64_t created = 0;         // seconds since 1970
  size_t max_token_bytes = 0;  // of the longest token: bounds prompts before encoding
};

// Sequences that the engine has been given and not ended; a bound on them is the server's queue.
class Admission {
 public:
  explicit Admission(int64_t limit) : limit_(limit) {}
  bool enter(int64_t n) {
    if (count_.fetch_add(n) + n <= limit_) return true;
    count_ -= n;
    return false;
  }
  void leave(int64_t n) { count_ -= n; }
  int64_t count() const { return count_; }
  int64_t limit() const { return limit_; }

 private:
  const int64_t limit_;
  std::atomic<int64_t> count_{0};
};

}  // namespace nibble::server
