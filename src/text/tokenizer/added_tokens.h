// Added tokens, looked for in the text before it is split: leftmost, then longest.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/split_pattern.h"
#include "text/tokenizer/tokenizer_json.h"

namespace nibble {

class AddedTokens {
 public:
  struct Match {
    size_t begin = 0, end = 0;  // with the white space that the token takes along
    int32_t id = 0;
  };

  AddedTokens();
  // The content must not be empty.
  void add(const AddedToken& token);

  bool empty() const { return tokens_.empty(); }
  bool all_special() const { return all_special_; }

  // The first match at or after `from`; earlier matches took all before `from`. Special tokens are
  // passed over where `specials` is false. `text` may hold invalid UTF-8.
  bool find(std::string_view text, size_t from, bool specials, MatchSpace& space,
            Match& match) const;

 private:
  // The longest token that starts at text[0], or -1.
  int longest_at(std::string_view text) const;
  bool is_single_word(std::string_view text, size_t begin, size_t end, MatchSpace& space) const;

  std::vector<AddedToken> tokens_;
  bool all_special_ = true;
  // A trie: (node << 8 | byte) -> node; node 0 is the root.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<int> token_at_;  // by node, -1: none ends here
  std::array<bool, 256> first_byte_{};
  SplitPattern word_;  // \w of the library that defines this: Rust's regex crate
};

}  // namespace nibble
