#include "text/tokenizer/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "text/tokenizer/nfc.h"
#include "text/tokenizer/tokenizer_json.h"
#include "text/tokenizer/tokenizer_tables.h"
#include "text/utf8.h"

namespace nibble {
namespace {

// One call of encode(): each stage cuts the text smaller and hands the pieces to the next.
class Encoding {
 public:
  Encoding(const TokenizerTables& tables, EncodeScratch& scratch, Specials specials,
           std::vector<int32_t>& ids)
      : t_(tables), s_(scratch), specials_(specials), ids_(ids) {}

  void run(std::string_view text) {
    cut_at_added(t_.added_raw, text, [&](std::string_view rest) { valid_and_invalid(rest); });
  }

 private:
  template <typename Next>
  void cut_at_added(const AddedTokens& added, std::string_view text, Next next) {
    size_t from = 0;
    const bool all = specials_ == Specials::kRecognize;
    const bool may_be_there =
        !added.empty() && (all || (specials_ == Specials::kAsText && !added.all_special()));
    for (AddedTokens::Match m; may_be_there && added.find(text, from, all, s_.match, m);) {
      if (m.begin > from) next(text.substr(from, m.begin - from));
      ids_.push_back(m.id);
      from = m.end;
    }
    if (from < text.size()) next(text.substr(from));
  }

  // Runs of bytes that are no UTF-8 become the tokens of their bytes; the rest goes on.
  void valid_and_invalid(std::string_view text) {
    while (!text.empty()) {
      const size_t valid = utf8::valid_prefix(text);
      if (valid > 0) normalize(text.substr(0, valid));
      text.remove_prefix(valid);
      size_t bad = 0;
      while (bad < text.size()) {
        const utf8::Unit unit = utf8::first_unit(text.substr(bad));
        if (unit.kind == utf8::Kind::kCharacter) break;
        bad += unit.bytes;
      }
      t_.bpe.encode(text.substr(0, bad), s_.bpe, ids_);
      text.remove_prefix(bad);
    }
  }

  void normalize(std::string_view text) {
    const auto next = [&](std::string_view rest) { split(rest, 0); };
    if (t_.nfc && !is_plainly_nfc(text)) {
      cut_at_added(t_.added_normalized, to_nfc(text), next);
    } else {
      cut_at_added(t_.added_normalized, text, next);
    }
  }

  void split(std::string_view text, size_t step) {
    if (step == t_.splits.size()) return byte_level(text);
    const TokenizerTables::Split& s = t_.splits[step];
    for_pieces(s.pattern, text, [&](std::string_view piece, bool is_match) {
      const auto dropped = is_match ? SplitStep::Keep::kGaps : SplitStep::Keep::kMatches;
      if (s.keep != dropped) split(piece, step + 1);
    });
  }

  void byte_level(std::string_view text) {
    std::string with_space;
    if (t_.prefix_space && !text.starts_with(' ')) {
      with_space.append(1, ' ').append(text);
      text = with_space;
    }
    if (!t_.gpt2_split) return piece(text);
    for_pieces(*t_.gpt2_split, text, [&](std::string_view p, bool) { piece(p); });
  }

  // Calls back for every match and every stretch between matches, but not for empty ones.
  template <typename Next>
  void for_pieces(const SplitPattern& pattern, std::string_view text, Next next) {
    size_t done = 0, from = 0, begin = 0, end = 0;
    while (from < text.size() && pattern.find(text, from, s_.match, begin, end)) {
      if (begin > done) next(text.substr(done, begin - done), false);
      if (end > begin) next(text.substr(begin, end - begin), true);
      done = from = end;
      if (end == begin && from < text.size()) from += utf8::first_unit(text.substr(from)).bytes;
    }
    if (done < text.size()) next(text.substr(done), false);
  }

  void piece(std::string_view bytes) {
    if (!PieceCache::fits(bytes)) return uncached(bytes);
    const uint64_t hash = hash_bytes(bytes);
    if (s_.cache.get(bytes, hash, ids_)) return;
    const size_t before = ids_.size();
    uncached(bytes);
    s_.cache.put(bytes, hash, std::span(ids_).subspan(before));
  }

  void uncached(std::string_view bytes) {
    if (t_.ignore_merges) {
      if (const int32_t id = t_.vocabulary.find(bytes); id >= 0) return ids_.push_back(id);
    }
    t_.bpe.encode(bytes, s_.bpe, ids_);
  }

  const TokenizerTables& t_;
  EncodeScratch& s_;
  const Specials specials_;
  std::vector<int32_t>& ids_;
};

std::string read_whole(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (!in || error) throw Error(ErrorKind::kNotFound, path.string() + ": cannot be read");
  if (size > size_t{1} << 30) {
    throw Error(ErrorKind::kCheckpoint, path.string() + ": larger than 1 GiB, no tokenizer is");
  }
  std::string text(size, '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  if (!in) throw Error(ErrorKind::kCheckpoint, path.string() + ": ends early");
  return text;
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const TokenizerTables> tables) : tables_(std::move(tables)) {}

Tokenizer Tokenizer::load(const std::string& path) {
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(file)) file /= "tokenizer.json";
  return parse(read_whole(file), file.string());
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& origin) {
  return Tokenizer(
      std::make_shared<const TokenizerTables>(read_tokenizer_json(json, origin), origin));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<int32_t> ids;
  if (text.empty()) return ids;
  ids.reserve(text.size() / 4 + 8);
  auto scratch = tables_->scratches.take();
  Encoding(*tables_, *scratch, specials, ids).run(text);
  tables_->scratches.give_back(std::move(scratch));
  return ids;
}

std::string Tokenizer::decode_bytes(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!(skip_special && is_special(id))) bytes += token_bytes(id);
  }
  return bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  const std::string bytes = decode_bytes(ids, skip_special);
  std::string text;
  text.reserve(bytes.size());
  utf8::append_lossy(bytes, true, text);
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const { return tables_->vocabulary.bytes(id); }

int32_t Tokenizer::find_text(std::string_view bytes) const {
  return tables_->vocabulary.find(bytes);
}

bool Tokenizer::decodable(int32_t id) const { return tables_->vocabulary.has(id); }

bool Tokenizer::is_special(int32_t id) const { return decodable(id) && tables_->special[id]; }

std::optional<Tokenizer::Added> Tokenizer::find_added(std::string_view text) const {
  auto scratch = tables_->scratches.take();
  AddedTokens::Match match;
  std::optional<Added> first;
  for (const AddedTokens* added : {&tables_->added_raw, &tables_->added_normalized}) {
    if (added->empty() || !added->find(text, 0, true, scratch->match, match)) continue;
    if (!first || match.begin < first->begin) first = Added{match.begin, match.end, match.id};
  }
  tables_->scratches.give_back(std::move(scratch));
  return first;
}

std::optional<int32_t> Tokenizer::find_special(std::string_view content) const {
  const auto it = tables_->added_ids.find(std::string(content));
  if (it == tables_->added_ids.end()) return std::nullopt;
  return it->second;
}

int32_t Tokenizer::size() const { return tables_->vocabulary.size(); }

std::span<const int32_t> Tokenizer::prefix_ids() const { return tables_->prefix_ids; }

std::span<const int32_t> Tokenizer::suffix_ids() const { return tables_->suffix_ids; }

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(tokenizer), skip_special_(skip_special) {}

std::string Detokenizer::push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_.is_special(id)) return text;
  pending_ += tokenizer_.token_bytes(id);
  pending_.erase(0, utf8::append_lossy(pending_, false, text));
  return text;
}

std::string Detokenizer::flush() {
  std::string text;
  utf8::append_lossy(pending_, true, text);
  pending_.clear();
  return text;
}

}  // namespace nibble
