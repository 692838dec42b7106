#include "text/tokenizer/tokenizer_tables.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/tokenizer/nfc.h"

namespace nibble {
namespace {

constexpr char kGpt2Split[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void refuse(const std::string& origin, const std::string& what) {
  throw Error(ErrorKind::kCheckpoint, origin + ": " + what);
}

// The model's own tokens; the added ones come later.
Vocabulary make_vocabulary(const TokenizerSpec& spec, const std::string& origin) {
  int32_t num_ids = 0;
  size_t num_bytes = 0;
  for (const int32_t id : spec.vocab_ids) num_ids = std::max(num_ids, id + 1);
  for (const AddedToken& t : spec.added) num_ids = std::max(num_ids, t.id + 1);
  for (size_t i = 0; i < spec.vocab.size(); ++i) num_bytes += spec.vocab[i].size();
  Vocabulary vocabulary(num_ids, num_bytes);
  std::string bytes;
  for (size_t i = 0; i < spec.vocab.size(); ++i) {
    const std::string_view spelling = spec.vocab[i];
    const int32_t id = spec.vocab_ids[i];
    const auto field = [&] { return "model.vocab[\"" + std::string(spelling) + "\"]"; };
    if (spelling.empty()) refuse(origin, "model.vocab: has an empty token");
    if (vocabulary.has(id)) refuse(origin, field() + ": id " + std::to_string(id) + " is taken");
    // A spelling outside the byte alphabet never comes from text; it is its own bytes.
    const bool from_text = bytes_of_spelling(spelling, bytes);
    if (from_text && vocabulary.find(bytes) >= 0) refuse(origin, field() + ": is there twice");
    vocabulary.add(id, from_text ? bytes : spelling, from_text);
  }
  return vocabulary;
}

Bpe make_bpe(const TokenizerSpec& spec, const Vocabulary& vocabulary, const std::string& origin) {
  std::array<int32_t, 256> byte_ids;
  for (int b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    byte_ids[b] = vocabulary.find(std::string_view(&c, 1));
    if (byte_ids[b] < 0) {
      refuse(origin, "model.vocab: has no token for the byte " + std::to_string(b) +
                         ": only byte-level BPE is supported");
    }
  }
  std::vector<Bpe::Merge> merges(spec.merge_parts.size() / 2);
  std::string left, right;
  for (size_t i = 0; i < merges.size(); ++i) {
    const auto id_of = [&](const std::string& bytes, bool known, std::string_view spelling) {
      const int32_t id = known ? vocabulary.find(bytes) : -1;
      if (id < 0) {
        refuse(origin, "model.merges[" + std::to_string(i) + "]: \"" + std::string(spelling) +
                           "\" is not in the vocabulary");
      }
      return id;
    };
    const std::string_view l = spec.merge_parts[2 * i], r = spec.merge_parts[2 * i + 1];
    const bool left_known = bytes_of_spelling(l, left), right_known = bytes_of_spelling(r, right);
    merges[i].left = id_of(left, left_known, l);
    merges[i].right = id_of(right, right_known, r);
    merges[i].product = id_of(left + right, true, std::string(l) + std::string(r));
  }
  return Bpe(byte_ids, merges);
}

}  // namespace

std::unique_ptr<EncodeScratch> ScratchPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto scratch = std::move(free_.back());
      free_.pop_back();
      return scratch;
    }
  }
  return std::make_unique<EncodeScratch>();
}

void ScratchPool::give_back(std::unique_ptr<EncodeScratch> scratch) {
  constexpr size_t kMaxSymbols = 1 << 16;  // memory for a giant piece is not kept
  if (scratch->bpe.symbols.capacity() > kMaxSymbols) scratch->bpe = {};
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(scratch));
}

TokenizerTables::TokenizerTables(const TokenizerSpec& spec, const std::string& origin)
    : vocabulary(make_vocabulary(spec, origin)),
      bpe(make_bpe(spec, vocabulary, origin)),
      ignore_merges(spec.ignore_merges),
      nfc(spec.nfc),
      prefix_space(spec.prefix_space),
      special(vocabulary.size(), false),
      prefix_ids(spec.prefix_ids),
      suffix_ids(spec.suffix_ids) {
  for (const SplitStep& s : spec.splits) {
    splits.push_back({SplitPattern(s.regex, origin + ": " + s.field), s.keep});
  }
  if (spec.gpt2_split) {
    gpt2_split.emplace(kGpt2Split, origin + ": ByteLevel use_regex");
  }
  for (size_t i = 0; i < spec.added.size(); ++i) {
    add_token(spec.added[i], origin + ": added_tokens[" + std::to_string(i) + "]");
  }
  for (const auto* ids : {&prefix_ids, &suffix_ids}) {
    for (const int32_t id : *ids) {
      if (!vocabulary.has(id)) {
        refuse(origin, "post_processor: id " + std::to_string(id) + " has no token");
      }
    }
  }
}

void TokenizerTables::add_token(const AddedToken& token, const std::string& field) {
  const std::string name = "\"" + token.content + "\"";
  if (!added_ids.emplace(token.content, token.id).second) refuse(field, name + " is there twice");
  std::string bytes;  // of the model's own token of this spelling
  const bool in_alphabet = bytes_of_spelling(token.content, bytes);
  if (const int32_t id = in_alphabet ? vocabulary.find(bytes) : -1; id >= 0 && id != token.id) {
    refuse(field, name + " has id " + std::to_string(id) + " in model.vocab");
  }
  AddedToken in_text = token;  // as it is in the text that it is looked for in
  if (nfc && token.match_normalized) in_text.content = to_nfc(token.content);
  if (!vocabulary.has(token.id)) {
    vocabulary.add(token.id, in_text.content, false);
  } else if (vocabulary.bytes(token.id) != token.content &&
             !(in_alphabet && vocabulary.bytes(token.id) == bytes)) {
    refuse(field, name + ": id " + std::to_string(token.id) + " is taken");
  }
  special[token.id] = token.special;
  (token.match_normalized ? added_normalized : added_raw).add(in_text);
}

}  // namespace nibble
