// Regular expressions of a tokenizer.json's Split steps, matched by PCRE2 with the meaning that
// Hugging Face `tokenizers` (Oniguruma, Ruby syntax, UTF-8) gives them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace nibble {

// What one thread needs to match: registers and the stack of the compiled code.
class MatchSpace {
 public:
  MatchSpace();
  ~MatchSpace();
  MatchSpace(const MatchSpace&) = delete;

 private:
  friend class SplitPattern;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Immutable; any number of threads may match at once, each with its own MatchSpace.
class SplitPattern {
 public:
  // Throws Error naming `field` where PCRE2 cannot compile the expression, or where it might mean
  // something else there than in Oniguruma.
  SplitPattern(std::string_view regex, const std::string& field);

  // Looks for the next match that starts at or after `from` in a well-formed UTF-8 text. False
  // where there is none, or where matching ran into a limit: then the rest counts as text between
  // matches, so nothing is lost.
  bool find(std::string_view text, size_t from, MatchSpace& space, size_t& begin,
            size_t& end) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace nibble
