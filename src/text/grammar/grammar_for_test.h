// For tests of grammars: a compiler whose tokens are bytes, and whether a text is of a grammar.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "text/chat/harmony_for_test.h"
#include "text/grammar/grammar.h"

namespace nibble {

inline constexpr int32_t kReturn = 256;  // in byte_tokenizer()
inline constexpr int32_t kVocab = 270;   // a few columns of the logits have no token

inline const GrammarCompiler& compiler() {
  static const GrammarCompiler compiler(byte_tokenizer(), kVocab);
  return compiler;
}

inline Result<Grammar> compile(GrammarSpec::Kind kind, const std::string& text) {
  return compiler().compile({.kind = kind, .text = text});
}

inline std::vector<uint32_t> mask_of(GrammarRun& run) {
  std::vector<uint32_t> bits((kVocab + 31) / 32, ~uint32_t{0});
  run.mask(bits);
  return bits;
}

inline bool has(const std::vector<uint32_t>& bits, int32_t id) {
  return bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
}

struct Form {
  GrammarSpec::Kind kind;
  std::string text;
};

// Whether the whole text is of the grammar: every byte is allowed by mask and accept() alike, and
// the end id is allowed behind the last.
inline bool matches(const Grammar& grammar, const std::string& text) {
  GrammarRun run(grammar, {kReturn});
  for (const char c : text) {
    const int32_t id = static_cast<unsigned char>(c);
    const bool allowed = has(mask_of(run), id);
    EXPECT_EQ(run.accept(id), allowed) << text;
    if (!allowed) return false;
  }
  return has(mask_of(run), kReturn);
}

}  // namespace nibble
