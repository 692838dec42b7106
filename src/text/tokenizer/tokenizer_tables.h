// All that a Tokenizer knows: the tables made from a checked tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/piece_cache.h"
#include "text/tokenizer/split_pattern.h"
#include "text/tokenizer/tokenizer_json.h"
#include "text/tokenizer/vocabulary.h"

namespace nibble {

// What one call of encode() works with.
struct EncodeScratch {
  MatchSpace match;
  Bpe::Space bpe;
  PieceCache cache;
};

// Scratches that no call uses now: as many as there were calls at once.
class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> take();
  void give_back(std::unique_ptr<EncodeScratch> scratch);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_;
};

struct TokenizerTables {
  // Throws Error naming `origin` and the field that contradicts another.
  TokenizerTables(const TokenizerSpec& spec, const std::string& origin);

  struct Split {
    SplitPattern pattern;
    SplitStep::Keep keep;
  };

  Vocabulary vocabulary;
  Bpe bpe;
  bool ignore_merges, nfc, prefix_space;
  std::vector<Split> splits;
  std::optional<SplitPattern> gpt2_split;
  AddedTokens added_raw, added_normalized;  // looked for before and after normalization
  std::unordered_map<std::string, int32_t> added_ids;
  std::vector<bool> special;
  std::vector<int32_t> prefix_ids, suffix_ids;
  mutable ScratchPool scratches;

 private:
  void add_token(const AddedToken& token, const std::string& field);
};

}  // namespace nibble
