// Stop strings on a stream of text: what may be shown now, and where the text ends. Knows nothing
// of tokens.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

// The first stop string to be complete ends the text (of several that end at the same byte, the
// longest), however the text is cut into pieces. Text that might be the start of a stop string is
// held back. Cost: O(1) a byte, whatever the number of stop strings. A copy is a snapshot, and
// shares the tables made of the strings, about 150 bytes for each of theirs.
class StopStrings {
 public:
  // Empty strings are ignored. `include_in_output`: the stop string itself is part of the output
  // (`include_stop_str_in_output`), and nothing is held back.
  explicit StopStrings(const std::vector<std::string>& stops, bool include_in_output = false);
  StopStrings() = default;  // nothing to look for

  // Takes the next text and returns what can be shown. After the stop: nothing.
  std::string push(std::string_view text);
  // The text ended without a stop: returns what was held back.
  std::string flush();

  // Whether there is nothing to look for.
  bool empty() const { return automaton_ == nullptr; }
  bool stopped() const { return matched_ >= 0; }
  // Index in the constructor's list of the stop string found; -1 before.
  int matched() const { return matched_; }

 private:
  struct Automaton;
  std::shared_ptr<const Automaton> automaton_;  // none where there is nothing to look for
  bool include_in_output_ = false;
  int state_ = 0;
  int matched_ = -1;
  std::string held_;
};

}  // namespace nibble
