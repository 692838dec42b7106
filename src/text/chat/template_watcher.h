// What the engine needs to know of a chat in a template's format while it samples: stop strings in
// the content, and the grammar of all behind the reasoning.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/token_watcher.h"
#include "text/chat/chat_stream.h"
#include "text/chat/template_answer.h"
#include "text/grammar/grammar.h"
#include "text/stop_strings.h"

namespace nibble {

class TemplateWatcher : public TokenWatcher {
 public:
  TemplateWatcher(const Tokenizer& tokenizer, AnswerMarkup markup,
                  const ChatStreamOptions& options);

  Watch accept(int32_t id) override;
  void rollback(int n) override;
  bool mask(std::span<uint32_t> bits) override;
  MaskState mask_state() const override;
  std::string fault() const override { return run_ ? run_->fault() : ""; }
  int part() const override { return state_.answer.in_reasoning() ? 1 : 0; }
  void on_mask(std::function<void()> changed) override;

 private:
  static constexpr size_t kMaxRollback = 64;  // accepted ids that can be taken back

  struct State {
    TemplateAnswer answer;
    StopStrings stops;
    bool in_form = false;   // the run has begun
    bool lost = false;      // an id came that was masked: nothing may follow
    size_t run_length = 0;  // ids that the run had accepted
    int newlines_left = 0;  // that may still come between the reasoning and the form
  };

  const StopStrings fresh_stops_;
  const std::vector<int32_t> end_ids_;
  const std::optional<int32_t> think_;  // the token, where there is one
  std::vector<int32_t> newlines_;       // tokens of "\n" and "\n\n"
  std::shared_ptr<GrammarRun> run_;     // null: no grammar
  State state_;
  std::deque<State> before_;  // the states before the latest ids
};

}  // namespace nibble
