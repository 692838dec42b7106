// What a tokenizer.json says, checked, before it becomes tables. Only the subset that byte-level
// BPE models use is known; any other setting that would change ids is refused by name.
// Source of the format: the serialization of Hugging Face `tokenizers` 0.23.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

// Strings of a vocabulary, one after the other in one block.
class StringList {
 public:
  void add(std::string_view s) {
    text_ += s;
    ends_.push_back(text_.size());
  }
  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string text_;
  std::vector<size_t> ends_;
};

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool single_word = false;      // only between non-word characters
  bool lstrip = false;           // takes the white space before it along
  bool rstrip = false;           // and after it
  bool match_normalized = true;  // looked for in the normalized text
};

// One Split step: cuts a text at the matches of a regular expression (Oniguruma's dialect).
struct SplitStep {
  enum class Keep { kAll, kMatches, kGaps };
  std::string regex;
  Keep keep = Keep::kAll;  // which pieces remain
  std::string field;       // where the file says so, for errors
};

struct TokenizerSpec {
  StringList vocab;                // as spelled in the file, in the byte-level alphabet
  std::vector<int32_t> vocab_ids;  // parallel to vocab; 0 <= id < kMaxIds
  StringList merge_parts;          // left, right, left, right, ... in rank order
  bool ignore_merges = false;      // a piece that is a token is taken whole
  std::vector<AddedToken> added;
  bool nfc = false;
  std::vector<SplitStep> splits;  // applied in order, each to the pieces of the one before
  bool prefix_space = false;      // ByteLevel: every piece starts with a space
  bool gpt2_split = false;        // ByteLevel: then split by GPT-2's expression
  std::vector<int32_t> prefix_ids, suffix_ids;  // the post-processor's, around one text
};

inline constexpr int32_t kMaxIds = 1 << 22;  // far above any vocabulary; bounds the tables

// Throws Error naming `origin` and the field.
TokenizerSpec read_tokenizer_json(std::string_view json, const std::string& origin);

// The byte that GPT-2's byte-level alphabet writes as the code point, or -1.
int byte_of_alphabet(char32_t c);
// A spelling in that alphabet, as bytes. False where it has a character outside the alphabet.
bool bytes_of_spelling(std::string_view spelling, std::string& bytes);

}  // namespace nibble
