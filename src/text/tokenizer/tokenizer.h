// Text to token ids and back, from a Hugging Face tokenizer.json (byte-level BPE). The result is
// that of the `tokenizers` library for every valid UTF-8 text; what the reader does not know, it
// refuses at load.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

struct TokenizerTables;

// Whether special tokens that are spelled out in the text become their ids. User text: never.
// kNone: no added token does, not even one that is not special.
enum class Specials { kAsText, kRecognize, kNone };

// Immutable and shared: a copy is a pointer, and any number of threads may call it at once.
class Tokenizer {
 public:
  // Reads a tokenizer.json, or the one in a directory. Throws Error naming the file and the field.
  static Tokenizer load(const std::string& path);
  // `origin` names the text in errors.
  static Tokenizer parse(std::string_view json, const std::string& origin);

  // Adds no id of its own (no BOS). Bytes that are not valid UTF-8 are kept: each run of them
  // becomes the tokens of its bytes, so decode_bytes(encode(x)) == x whatever x is (unless the file
  // asks for normalization).
  // Added tokens that are not special (Qwen's <think>) are recognised whatever `specials` says.
  std::vector<int32_t> encode(std::string_view text, Specials specials = Specials::kAsText) const;

  // Always valid UTF-8: bytes that are not become U+FFFD. Ids without text give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  // The bytes as they are.
  std::string decode_bytes(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes of one token, perhaps not whole characters; empty for an id without text. Lives as
  // long as any copy of the tokenizer.
  std::string_view token_bytes(int32_t id) const;
  // The id of the token that is just this text, not special; -1: there is none.
  int32_t find_text(std::string_view bytes) const;
  // Whether the id has text; the others must never be sampled.
  bool decodable(int32_t id) const;
  // Whether the file marks the id as special.
  bool is_special(int32_t id) const;
  // An added token, special or not, in a text: the first, with the blanks that it takes along.
  struct Added {
    size_t begin, end;
    int32_t id;
  };
  std::optional<Added> find_added(std::string_view text) const;
  // The id of the added token (special or not) of this content, say "<|end|>".
  std::optional<int32_t> find_special(std::string_view content) const;
  // The highest id + 1. A model's logits may have more rows; those are undecodable.
  int32_t size() const;

  // What the file's post-processor puts before and after one text (Llama-3: <|begin_of_text|>).
  // encode() does not.
  std::span<const int32_t> prefix_ids() const;
  std::span<const int32_t> suffix_ids() const;

 private:
  explicit Tokenizer(std::shared_ptr<const TokenizerTables> tables);
  std::shared_ptr<const TokenizerTables> tables_;
};

// Ids in, text out, as soon as whole characters are there: never half a character. A byte sequence
// that cannot become a character gives one U+FFFD per maximal bad prefix (as Harmony's parser, Rust
// and WHATWG do), and so the pieces joined equal decode() of all ids. A copy is a snapshot.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false);

  std::string push(int32_t id);
  // The end: an unfinished character becomes U+FFFD. Ready for new ids after it.
  std::string flush();

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  std::string pending_;  // at most 3 bytes of an unfinished character
};

}  // namespace nibble
