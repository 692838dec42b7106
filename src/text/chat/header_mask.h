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
  bool must_call = false;  // at most one message of analysis, then a call; no end before it
};

// A value, like HarmonyParser: a copy is a snapshot. Ids that were sampled against the mask are
// taken: until the next header nothing is masked then.
class HeaderMask {
 public:
  HeaderMask(const Harmony& harmony, const HarmonyStart& start, const HeaderRules& rules);

  void accept(int32_t id);
  // As TokenWatcher::mask(). In a header it looks up the vocabulary for what each legal header may
  // go on with: up to some milliseconds with hundreds of recipients.
  bool mask(std::span<uint32_t> bits) const;

 private:
  enum class State { kBetween, kHeader, kContent };
  struct Table;

  std::vector<int32_t> next_ids() const;

  std::shared_ptr<const Table> table_;
  State state_ = State::kHeader;
  std::string header_;     // in kHeader: its text, special tokens as single bytes
  bool reasoned_ = false;  // there was a message of analysis
  bool called_ = false;    // there was a call, or there is one
};

}  // namespace nibble
