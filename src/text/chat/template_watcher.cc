#include "text/chat/template_watcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nibble {
namespace {

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void set_bit(std::span<uint32_t> bits, int32_t id, bool value) {
  const auto word = static_cast<size_t>(id) / 32;
  if (id < 0 || word >= bits.size()) return;
  const uint32_t bit = uint32_t{1} << (id % 32);
  bits[word] = value ? bits[word] | bit : bits[word] & ~bit;
}

}  // namespace

TemplateWatcher::TemplateWatcher(const Tokenizer& tokenizer, AnswerMarkup markup,
                                 const ChatStreamOptions& options)
    : fresh_stops_(options.stop),
      end_ids_(joined(options.end_ids, options.stop_ids)),
      think_(markup.think ? tokenizer.find_special("<think>") : std::nullopt),
      state_{.answer = TemplateAnswer(tokenizer, markup, options), .stops = fresh_stops_} {
  if (options.answer && !end_ids_.empty()) {
    run_ = std::make_shared<GrammarRun>(*options.answer, end_ids_);
  }
  state_.in_form = !state_.answer.in_reasoning();
  for (const char* text : {"\n", "\n\n"}) {
    if (const int32_t id = tokenizer.find_text(text); id >= 0) newlines_.push_back(id);
  }
}

bool TemplateWatcher::mask(std::span<uint32_t> bits) {
  if (!run_) return false;
  if (state_.lost) return std::fill(bits.begin(), bits.end(), 0), true;
  if (!state_.in_form) {  // the answer has to come yet
    for (const int32_t id : end_ids_) set_bit(bits, id, false);
    return true;
  }
  const auto word = think_ ? static_cast<size_t>(*think_) / 32 : bits.size();
  const bool may_think = state_.run_length == 0 && state_.answer.at_start() && word < bits.size() &&
                         (bits[word] >> (*think_ % 32) & 1) != 0;
  run_->mask(bits);
  if (may_think) set_bit(bits, *think_, true);
  for (const int32_t id : newlines_) {
    if (state_.newlines_left > 0) set_bit(bits, id, true);
  }
  return true;
}

// The run is asked only where the form has begun.
MaskState TemplateWatcher::mask_state() const {
  return run_ && state_.in_form && !state_.lost ? run_->mask_state() : MaskState::kReady;
}

void TemplateWatcher::on_mask(std::function<void()> changed) {
  if (run_) run_->on_mask(std::move(changed));
}

Watch TemplateWatcher::accept(int32_t id) {
  before_.push_back(state_);
  if (before_.size() > kMaxRollback) before_.pop_front();
  const bool thinks = state_.run_length == 0 && state_.answer.at_start() && id == think_;
  if (run_ && thinks) state_.in_form = false;
  const bool between = state_.newlines_left-- > 0 &&
                       std::find(newlines_.begin(), newlines_.end(), id) != newlines_.end();
  if (!between) state_.newlines_left = 0;
  if (run_ && state_.in_form && !between && !state_.lost) {
    state_.lost = !run_->accept(id);
    state_.run_length = run_->num_accepted();
  }
  const bool was_reasoning = state_.answer.in_reasoning();
  std::vector<ChatEvent> events;
  state_.answer.push(id, events);
  if (was_reasoning && !state_.answer.in_reasoning()) {
    state_.in_form = true;
    state_.newlines_left = kNewlinesBeforeForm;
  }
  for (const ChatEvent& event : events) {
    if (event.part != ChatPart::kContent) continue;
    if (event.kind == ChatEvent::Kind::kEnd) state_.stops = fresh_stops_;
    if (event.kind == ChatEvent::Kind::kText) state_.stops.push(event.text);
    if (state_.stops.stopped()) return Watch::kStop;
  }
  return Watch::kGoOn;
}

void TemplateWatcher::rollback(int n) {
  if (n == 0) return;
  CHECK(n > 0 && static_cast<size_t>(n) <= before_.size());
  state_ = before_[before_.size() - n];
  before_.resize(before_.size() - n, state_);
  if (run_) run_->rollback_to(state_.run_length);
}

}  // namespace nibble
