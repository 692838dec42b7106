#include "text/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "text/utf8.h"

namespace nibble {
namespace {

using nlohmann::json;

// Reads the file in one pass: `model.vocab` and `model.merges`, which are nearly all of it, go
// straight into lists; the rest becomes a small tree.
class SpecSax : public nlohmann::json_sax<json> {
 public:
  SpecSax(TokenizerSpec& spec, const std::string& origin) : spec_(spec), origin_(origin) {}

  json take_tree() { return std::move(tree_); }

  bool null() override { return value(json(nullptr)); }
  bool boolean(bool v) override { return value(json(v)); }
  bool number_integer(number_integer_t v) override {
    if (in_ == In::kVocab) refuse_id(std::to_string(v));
    return value(json(v));
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (in_ != In::kVocab) return value(json(v));
    if (v >= static_cast<number_unsigned_t>(kMaxIds)) refuse_id(std::to_string(v));
    spec_.vocab_ids.push_back(static_cast<int32_t>(v));
    return true;
  }
  bool number_float(number_float_t v, const string_t& text) override {
    if (in_ == In::kVocab) refuse_id(text);
    return value(json(v));
  }
  bool binary(binary_t&) override { return false; }  // not in text
  bool string(string_t& v) override {
    if (in_ == In::kMerges) return merge_line(v);
    if (in_ == In::kMergePair) {
      spec_.merge_parts.add(v);
      ++pair_parts_;
      return true;
    }
    return value(json(std::move(v)));
  }

  bool key(string_t& v) override {
    if (in_ == In::kVocab) {
      spec_.vocab.add(v);
    } else {
      key_ = std::move(v);
    }
    return true;
  }
  bool start_object(size_t) override {
    if (in_ == In::kTree && in_model() && key_ == "vocab") {
      if (has_vocab_) refuse("model.vocab", "is there twice");
      has_vocab_ = true;
      in_ = In::kVocab;
      return true;
    }
    return open(json::object());
  }
  bool end_object() override {
    if (in_ == In::kVocab) {
      in_ = In::kTree;
      return true;
    }
    return close();
  }
  bool start_array(size_t) override {
    if (in_ == In::kMerges) {
      in_ = In::kMergePair;
      pair_parts_ = 0;
      return true;
    }
    if (in_ == In::kTree && in_model() && key_ == "merges") {
      if (has_merges_) refuse("model.merges", "is there twice");
      has_merges_ = true;
      in_ = In::kMerges;
      return true;
    }
    return open(json::array());
  }
  bool end_array() override {
    if (in_ == In::kMergePair) {
      if (pair_parts_ != 2) refuse_merge("must have two parts");
      in_ = In::kMerges;
      return true;
    }
    if (in_ == In::kMerges) {
      in_ = In::kTree;
      return true;
    }
    return close();
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    throw Error(ErrorKind::kCheckpoint, origin_ + ": not valid JSON: " + e.what());
  }

  bool has_vocab() const { return has_vocab_; }
  bool has_merges() const { return has_merges_; }

 private:
  enum class In { kTree, kVocab, kMerges, kMergePair };

  // Directly inside the top level's "model".
  bool in_model() const { return open_.size() == 2 && open_[1] == model_ && open_[1]->is_object(); }

  bool value(json v) {
    if (in_ == In::kVocab) refuse_id(v.dump());
    if (in_ != In::kTree) refuse_merge("must be a string or a pair of strings");
    place(std::move(v));
    return true;
  }

  bool open(json container) {
    if (in_ == In::kVocab) refuse_id("a container");
    if (in_ != In::kTree) refuse_merge("must be a string or a pair of strings");
    const bool is_model = open_.size() == 1 && open_[0]->is_object() && key_ == "model";
    open_.push_back(place(std::move(container)));
    if (is_model) model_ = open_.back();
    return true;
  }

  bool close() {
    if (open_.back() == model_) model_ = nullptr;
    open_.pop_back();
    return true;
  }

  // Pointers to open containers stay valid: only the innermost one grows.
  json* place(json v) {
    if (open_.empty()) return &(tree_ = std::move(v));
    json& parent = *open_.back();
    if (parent.is_array()) return &parent.emplace_back(std::move(v));
    if (parent.contains(key_)) refuse(key_, "is there twice in one object");
    return &(parent[key_] = std::move(v));
  }

  bool merge_line(const std::string& line) {
    if (line.starts_with("#version")) return true;  // the head of a merges.txt
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
      refuse_merge("must be two parts with one space between");
    }
    spec_.merge_parts.add(std::string_view(line).substr(0, space));
    spec_.merge_parts.add(std::string_view(line).substr(space + 1));
    return true;
  }

  [[noreturn]] void refuse(const std::string& field, const std::string& what) const {
    throw Error(ErrorKind::kCheckpoint, origin_ + ": " + field + ": " + what);
  }
  [[noreturn]] void refuse_id(const std::string& found) const {
    const size_t n = spec_.vocab.size();
    refuse("model.vocab[" + (n == 0 ? "" : json(spec_.vocab[n - 1]).dump()) + "]",
           found + " is not an id from 0 to " + std::to_string(kMaxIds - 1));
  }
  [[noreturn]] void refuse_merge(const std::string& what) const {
    refuse("model.merges[" + std::to_string(spec_.merge_parts.size() / 2) + "]", what);
  }

  TokenizerSpec& spec_;
  const std::string& origin_;
  json tree_;
  std::vector<json*> open_;
  const json* model_ = nullptr;
  std::string key_;
  In in_ = In::kTree;
  int pair_parts_ = 0;
  bool has_vocab_ = false, has_merges_ = false;
};

// A value of the tree together with its place in the file.
struct Field {
  const json& value;
  std::string path;
  const std::string& origin;

  [[noreturn]] void refuse(const std::string& what, ErrorKind kind) const {
    throw Error(kind, origin + ": " + (path.empty() ? "top level" : path) + ": " + what);
  }
  [[noreturn]] void wrong(const std::string& what) const { refuse(what, ErrorKind::kCheckpoint); }
  [[noreturn]] void unsupported() const {
    refuse(shown() + " is not supported", ErrorKind::kUnsupported);
  }
  std::string shown() const {
    std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    if (text.size() > 80) text = text.substr(0, 77) + "...";
    return text;
  }

  bool absent() const { return value.is_null(); }
  // A member, null where it is missing.
  Field at(const std::string& key) const {
    static const json null;
    if (!value.is_object()) wrong("must be an object, is " + shown());
    const auto it = value.find(key);
    return {it == value.end() ? null : *it, path.empty() ? key : path + "." + key, origin};
  }
  std::vector<Field> items() const {
    if (!value.is_array()) wrong("must be a list, is " + shown());
    std::vector<Field> out;
    for (size_t i = 0; i < value.size(); ++i) {
      out.push_back({value[i], path + "[" + std::to_string(i) + "]", origin});
    }
    return out;
  }
  std::string text() const {
    if (!value.is_string()) wrong("must be a string, is " + shown());
    return value.get<std::string>();
  }
  bool flag(bool otherwise) const {
    if (absent()) return otherwise;
    if (!value.is_boolean()) wrong("must be true or false, is " + shown());
    return value.get<bool>();
  }
  int32_t id() const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= uint64_t{kMaxIds}) {
      wrong(shown() + " is not an id from 0 to " + std::to_string(kMaxIds - 1));
    }
    return value.get<int32_t>();
  }
  // For a setting that is known only as absent, false, 0 or "".
  void must_be_off() const {
    const bool off = absent() || value == json(false) || value == json("") ||
                     (value.is_number() && value.get<double>() == 0);
    if (!off) unsupported();
  }
};

void read_model(const Field& model, TokenizerSpec& spec) {
  const Field type = model.at("type");
  if (!type.absent() && type.text() != "BPE") type.unsupported();
  model.at("dropout").must_be_off();
  model.at("continuing_subword_prefix").must_be_off();
  model.at("end_of_word_suffix").must_be_off();
  // unk_token, fuse_unk and byte_fallback act on characters outside the vocabulary: there are none,
  // since all 256 byte symbols must be in it.
  spec.ignore_merges = model.at("ignore_merges").flag(false);
}

void read_added_tokens(const Field& list, TokenizerSpec& spec) {
  if (list.absent()) return;
  for (const Field& f : list.items()) {
    AddedToken t;
    t.content = f.at("content").text();
    if (t.content.empty()) f.at("content").wrong("must not be empty");
    t.id = f.at("id").id();
    t.special = f.at("special").flag(false);
    t.single_word = f.at("single_word").flag(false);
    t.lstrip = f.at("lstrip").flag(false);
    t.rstrip = f.at("rstrip").flag(false);
    t.match_normalized = f.at("normalized").flag(!t.special);
    spec.added.push_back(std::move(t));
  }
}

void read_normalizer(const Field& normalizer, TokenizerSpec& spec) {
  if (normalizer.absent()) return;
  const std::string type = normalizer.at("type").text();
  if (type == "NFC") {
    spec.nfc = true;
  } else if (type == "Sequence") {
    for (const Field& f : normalizer.at("normalizers").items()) {
      if (f.at("type").text() != "NFC") f.unsupported();
      spec.nfc = true;
    }
  } else {
    normalizer.unsupported();
  }
}

// The expression that matches exactly the text.
std::string regex_of_literal(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
                       static_cast<uint8_t>(c) >= 0x80 || static_cast<uint8_t>(c) <= ' ';
    if (!plain) out += '\\';
    out += c;
  }
  return out;
}

SplitStep read_split(const Field& f) {
  SplitStep step;
  const Field pattern = f.at("pattern");
  step.field = pattern.path;
  if (!pattern.at("Regex").absent()) {
    step.regex = pattern.at("Regex").text();
  } else if (!pattern.at("String").absent()) {
    step.regex = regex_of_literal(pattern.at("String").text());
  } else {
    pattern.unsupported();
  }
  if (step.regex.empty()) pattern.wrong("must not be empty");
  const bool invert = f.at("invert").flag(false);
  const std::string behavior = f.at("behavior").text();
  if (behavior == "Isolated") {
    step.keep = SplitStep::Keep::kAll;
  } else if (behavior == "Removed") {
    step.keep = invert ? SplitStep::Keep::kMatches : SplitStep::Keep::kGaps;
  } else {
    f.at("behavior").unsupported();
  }
  return step;
}

// Splits, then ByteLevel, which must be the last: after it the text is in the byte-level alphabet.
void read_pre_tokenizer(const Field& pre, TokenizerSpec& spec) {
  if (pre.absent()) pre.wrong("is missing: only byte-level BPE is supported");
  const bool is_sequence = pre.at("type").text() == "Sequence";
  const std::vector<Field> steps =
      is_sequence ? pre.at("pretokenizers").items() : std::vector<Field>{pre};
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string type = steps[i].at("type").text();
    const bool is_last = i + 1 == steps.size();
    if (type == "Split" && !is_last) {
      spec.splits.push_back(read_split(steps[i]));
    } else if (type == "ByteLevel" && is_last) {
      spec.prefix_space = steps[i].at("add_prefix_space").flag(true);
      spec.gpt2_split = steps[i].at("use_regex").flag(true);
    } else if (type == "Split" || type == "ByteLevel") {
      steps[i].wrong("Split steps and then one ByteLevel step are supported, in this order");
    } else {
      steps[i].at("type").unsupported();
    }
  }
  if (steps.empty()) pre.wrong("has no ByteLevel step: only byte-level BPE is supported");
}

// A template for one text: special tokens around the sequence "A".
void read_template(const Field& processor, TokenizerSpec& spec) {
  bool seen = false;
  for (const Field& f : processor.at("single").items()) {
    if (!f.at("Sequence").absent()) {
      if (seen) f.wrong("the sequence is there twice");
      seen = true;
      continue;
    }
    const std::string name = f.at("SpecialToken").at("id").text();
    const Field entry = processor.at("special_tokens").at(name);
    if (entry.absent()) entry.wrong("is missing");
    for (const Field& id : entry.at("ids").items()) {
      (seen ? spec.suffix_ids : spec.prefix_ids).push_back(id.id());
    }
  }
}

void read_post_processor(const Field& post, TokenizerSpec& spec) {
  if (post.absent()) return;
  const std::string type = post.at("type").text();
  if (type == "ByteLevel") return;  // moves offsets only
  const std::vector<Field> steps =
      type == "Sequence" ? post.at("processors").items() : std::vector<Field>{post};
  bool seen = false;
  for (const Field& f : steps) {
    const std::string step = f.at("type").text();
    if (step == "ByteLevel") continue;
    if (step != "TemplateProcessing" || seen) f.unsupported();
    read_template(f, spec);
    seen = true;
  }
}

}  // namespace

TokenizerSpec read_tokenizer_json(std::string_view text, const std::string& origin) {
  TokenizerSpec spec;
  SpecSax sax(spec, origin);
  json::sax_parse(text.begin(), text.end(), &sax);
  const json tree = sax.take_tree();
  const Field root{tree, "", origin};
  if (!tree.is_object()) root.wrong("must be an object");
  const Field model = root.at("model");
  if (model.absent()) model.wrong("is missing");
  read_model(model, spec);
  if (!sax.has_vocab()) model.at("vocab").wrong("is missing or not an object");
  if (!sax.has_merges()) model.at("merges").wrong("is missing or not a list");
  read_added_tokens(root.at("added_tokens"), spec);
  read_normalizer(root.at("normalizer"), spec);
  read_pre_tokenizer(root.at("pre_tokenizer"), spec);
  read_post_processor(root.at("post_processor"), spec);
  const Field decoder = root.at("decoder");
  if (!decoder.absent() && decoder.at("type").text() != "ByteLevel") decoder.unsupported();
  // truncation and padding are the caller's business: ids of a text do not depend on them.
  return spec;
}

// GPT-2 writes the 188 printable bytes as themselves and the others, in order, as U+0100 onwards.
int byte_of_alphabet(char32_t c) {
  static const std::array<int16_t, 324> table = [] {
    std::array<int16_t, 324> t;
    t.fill(-1);
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      t[printable ? b : next++] = static_cast<int16_t>(b);
    }
    return t;
  }();
  return c < table.size() ? table[c] : -1;
}

bool bytes_of_spelling(std::string_view spelling, std::string& bytes) {
  bytes.clear();
  for (size_t i = 0; i < spelling.size();) {
    const size_t n = utf8::first_unit(spelling.substr(i)).bytes;
    const int byte = byte_of_alphabet(utf8::code_point(spelling.substr(i, n)));
    if (byte < 0) return false;
    bytes += static_cast<char>(byte);
    i += n;
  }
  return true;
}

}  // namespace nibble
