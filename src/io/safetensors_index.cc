#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/safetensors.h"

namespace nibble {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// Reads the index as a stream of events: of hundreds of thousands of names each is kept once.
class IndexReader : public json::json_sax_t {
 public:
  explicit IndexReader(std::string file) : file_(std::move(file)) {}

  SafetensorsIndex take() {
    if (!has_map_) fail("has no object \"weight_map\"");
    if (index_.file_of.empty()) fail("\"weight_map\" names no tensor");
    return std::move(index_);
  }

  bool null() override { return other("null"); }
  bool boolean(bool value) override { return other(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return is_total() ? total(static_cast<double>(value), value) : other(std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return is_total() ? total(static_cast<double>(value), static_cast<int64_t>(value))
                      : other(std::to_string(value));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!is_total()) return other(text);
    // Some writers go through a float.
    const bool is_whole = value >= 0 && value < kMaxTotal;
    return total(value, is_whole ? static_cast<int64_t>(value) : 0);
  }
  bool binary(binary_t&) override { return other("binary data"); }

  bool string(string_t& value) override {
    if (!is_shard() || !is_plain_file_name(value)) return other(json(value).dump());
    auto& files = index_.file_of;
    const size_t before = files.size();
    files.emplace_hint(files.end(), key_, value);  // most files are sorted
    if (files.size() == before) fail("tensor " + json(key_).dump() + " is named twice");
    return true;
  }

  bool start_object(size_t) override {
    if (is_shard() || is_total()) return other("an object");
    enter();
    if (depth_ == 1) is_object_ = true;
    if (depth_ == 2 && is_object_ && section_ == "weight_map") {
      if (has_map_) fail("has \"weight_map\" twice");
      has_map_ = in_map_ = true;
    }
    return true;
  }
  bool start_array(size_t) override {
    if (is_shard() || is_total()) return other("a list");
    enter();
    return true;
  }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(string_t& value) override {
    if (depth_ == 1) section_ = value;
    if (depth_ == 2) key_ = value;
    return true;
  }

  bool parse_error(size_t, const std::string&, const json::exception& e) override {
    fail(std::string("not valid JSON: ") + e.what());
  }

 private:
  static constexpr double kMaxTotal = 9e18;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::kCheckpoint, file_ + ": " + what);
  }
  void enter() {
    if (++depth_ > kMaxDepth) fail("nested deeper than 16 levels");
  }
  bool leave() {
    if (--depth_ == 1) section_.clear(), key_.clear(), in_map_ = false;
    return true;
  }

  // Whether what comes is a tensor's file, or the sum of all tensors.
  bool is_shard() const { return depth_ == 2 && in_map_; }
  bool is_total() const {
    return depth_ == 2 && is_object_ && section_ == "metadata" && key_ == "total_size";
  }
  bool total(double value, int64_t whole) {
    if (!(value >= 0 && value < kMaxTotal))
      fail("metadata.total_size: found " + json(value).dump());
    index_.total_bytes = whole;
    return true;
  }
  // A value that says nothing here, or that ought to be another.
  bool other(const std::string& found) const {
    if (is_shard())
      fail("tensor " + json(key_).dump() + ": found " + found +
           ", expected the name of a file in the same directory");
    if (is_total()) fail("metadata.total_size: found " + found);
    return true;
  }

  const std::string file_;
  int depth_ = 0;
  bool is_object_ = false;                 // at the top
  bool has_map_ = false, in_map_ = false;  // weight_map: was there, is what is being read
  std::string section_, key_;              // of the first level and of the second
  SafetensorsIndex index_;
};

}  // namespace

SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& file) {
  IndexReader reader(file);
  json::sax_parse(text, &reader);
  return reader.take();
}

}  // namespace nibble
