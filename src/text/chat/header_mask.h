// Which ids may come next in a Harmony header: keeps a model from malformed headers, and to those
// that the caller wants (a call, for tool_choice "required").
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "text/chat/harmony.h"

namespace nibble {

struct HeaderRules {
  std::vector<std::string> recipients;  // whom the model may call: "functions.f", "python"
  // What has to come, behind at most one message of analysis; no end before it.
  enum class Must { kNothing, kCall, kAnswer } must = Must::kNothing;  // kAnswer: final, or a call
};

// A value, like HarmonyParser: a copy is a snapshot. Ids that were sampled against the mask are
// taken: until the next header nothing is masked then. Shares the rules' table between copies.
class HeaderMask {
 public:
  HeaderMask(const Harmony& harmony, const HarmonyStart& start, const HeaderRules& rules);

  void accept(int32_t id);
  // As TokenWatcher::mask(). In a header it looks up in the vocabulary every text that a legal
  // header may go on with: about 30 a recipient.
  bool mask(std::span<uint32_t> bits) const;

 private:
  enum class State { kBetween, kHeader, kContent };
  struct Table;

  std::vector<int32_t> next_ids() const;
  void enter_content(bool is_call, std::string_view channel);

  std::shared_ptr<const Table> table_;
  State state_ = State::kHeader;
  std::string header_;     // in kHeader: its text, special tokens as single bytes
  bool reasoned_ = false;  // there was a message of analysis
  bool done_ = false;      // what must come has come, or is coming
};

}  // namespace nibble
