#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "base/error.h"

namespace nibble {
namespace {

using nlohmann::json;

constexpr size_t kMaxDims = 8;

struct DTypeName {
  std::string_view name;
  DType dtype;
};
constexpr DTypeName kDTypeNames[] = {
    {"BF16", DType::kBF16}, {"U8", DType::kU8},          {"F32", DType::kF32},
    {"F16", DType::kF16},   {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2},
    {"F64", DType::kF64},   {"I64", DType::kI64},        {"I32", DType::kI32},
    {"I16", DType::kI16},   {"I8", DType::kI8},          {"BOOL", DType::kBool},
};

std::optional<DType> dtype_of(std::string_view name) {
  for (const DTypeName& row : kDTypeNames)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

// Names come from outside: messages show them short and without control characters.
std::string shown(std::string_view name) {
  std::string text(name.substr(0, 120));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return name.size() > 120 ? text + "..." : text;
}

// Reads the header as a stream of events, so that a hostile one costs no more memory than the
// tensors it names, and duplicate keys are seen.
class HeaderReader : public json::json_sax_t {
 public:
  HeaderReader(std::string file, int64_t data_begin)
      : file_(std::move(file)), data_begin_(data_begin) {}

  std::vector<TensorInfo> take() { return std::move(tensors_); }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("true or false"); }
  bool number_integer(number_integer_t value) override {
    return refuse("the number " + std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return refuse("the number " + shown(text));
  }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets)
      return refuse("the number " + std::to_string(value));
    if (value > static_cast<uint64_t>(INT64_MAX))
      fail("the number " + std::to_string(value) + " in " + key_ + " is too large");
    std::vector<int64_t>& list = place_ == Place::kShape ? tensor_.shape : offsets_;
    const size_t limit = place_ == Place::kShape ? kMaxDims : 2;
    if (list.size() == limit) fail(key_ + " has more than " + std::to_string(limit) + " entries");
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || key_ != "dtype") return refuse("a string");
    const std::optional<DType> dtype = dtype_of(value);
    if (!dtype) fail("dtype \"" + shown(value) + "\" is not one that nibble reads");
    tensor_.dtype = *dtype;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kOutside) return enter(Place::kTop);
    if (place_ != Place::kTop) return refuse("an object");
    if (name_ == "__metadata__") return enter(Place::kMetadata);
    tensor_ = {};
    tensor_.name = name_;
    offsets_.clear();
    fields_ = 0;
    return enter(Place::kTensor);
  }

  bool key(string_t& value) override {
    if (place_ == Place::kTop) {
      name_ = value;
      key_.clear();
      if (!names_.insert(value).second) fail("is named twice");
      return true;
    }
    if (place_ == Place::kMetadata) return true;
    key_ = value;
    const unsigned field = value == "dtype"          ? 1
                           : value == "shape"        ? 2
                           : value == "data_offsets" ? 4
                                                     : 0;
    if (field == 0) fail("has an unknown field \"" + shown(value) + "\"");
    if ((fields_ & field) != 0) fail("has " + value + " twice");
    fields_ |= field;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) finish_tensor();
    return enter(place_ == Place::kTop ? Place::kDone : Place::kTop);
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") return enter(Place::kShape);
    if (place_ == Place::kTensor && key_ == "data_offsets") return enter(Place::kOffsets);
    return refuse("a list");
  }
  bool end_array() override { return enter(Place::kTensor); }

  bool parse_error(size_t position, const std::string&, const json::exception& e) override {
    throw Error(ErrorKind::kCheckpoint, file_ + ": header is not valid JSON at byte " +
                                            std::to_string(position) + ": " + e.what());
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kTensor, kShape, kOffsets, kDone };

  bool enter(Place place) {
    place_ = place;
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::kCheckpoint, file_ + ": tensor \"" + shown(name_) + "\": " + what);
  }

  bool refuse(const std::string& found) const {
    if (place_ == Place::kOutside)
      throw Error(ErrorKind::kCheckpoint, file_ + ": header is " + found + ", not an object");
    fail(found + " does not belong " + (key_.empty() ? "here" : "in " + key_));
  }

  void finish_tensor() {
    if (fields_ != 7) fail("needs dtype, shape and data_offsets");
    if (offsets_.size() != 2) fail("data_offsets needs two entries");
    int64_t bytes = dtype_bytes(tensor_.dtype);
    for (const int64_t n : tensor_.shape)
      if (__builtin_mul_overflow(bytes, n, &bytes)) fail("its shape overflows");
    if (offsets_[0] > offsets_[1]) fail("data_offsets run backwards");
    if (offsets_[1] - offsets_[0] != bytes)
      fail("data_offsets span " + std::to_string(offsets_[1] - offsets_[0]) +
           " bytes, dtype and shape need " + std::to_string(bytes));
    int64_t end = 0;
    if (__builtin_add_overflow(offsets_[1], data_begin_, &end)) fail("data_offsets are too large");
    tensor_.offset = end - bytes;
    tensor_.bytes = bytes;
    tensors_.push_back(std::move(tensor_));
  }

  std::string file_;
  int64_t data_begin_;
  Place place_ = Place::kOutside;
  std::string name_;  // of the tensor being read
  std::string key_;   // of its field
  unsigned fields_ = 0;
  TensorInfo tensor_;
  std::vector<int64_t> offsets_;
  std::unordered_set<std::string> names_;
  std::vector<TensorInfo> tensors_;
};

// Tensors sorted by offset must tile the data exactly, from the header's end to the file's end.
void check_tiling(const std::vector<TensorInfo>& tensors, int64_t data_begin, int64_t file_bytes,
                  const std::string& file) {
  int64_t next = data_begin;
  for (const TensorInfo& t : tensors) {
    const auto fail = [&](const std::string& what) {
      throw Error(ErrorKind::kCheckpoint, file + ": tensor \"" + shown(t.name) + "\": " + what);
    };
    if (t.offset < next) fail("overlaps the tensor before it");
    if (t.offset > next)
      fail("leaves a gap of " + std::to_string(t.offset - next) + " bytes before it");
    if (t.bytes > file_bytes - t.offset)
      fail("ends at byte " + std::to_string(t.offset + t.bytes) + " but the file has only " +
           std::to_string(file_bytes) + ": it is truncated, download it again");
    next = t.offset + t.bytes;
  }
  if (next != file_bytes)
    throw Error(ErrorKind::kCheckpoint,
                file + ": " + std::to_string(file_bytes - next) + " bytes follow the last tensor");
}

}  // namespace

int64_t safetensors_header_bytes(std::span<const std::byte, 8> start, int64_t file_bytes,
                                 const std::string& file) {
  if (std::memcmp(start.data(), "version ", 8) == 0)
    throw Error(ErrorKind::kCheckpoint, file +
                                            ": is a Git LFS pointer, not the weights; fetch them "
                                            "with `git lfs pull` or `hf download`");
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint64_t>(start[i]);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes))
    throw Error(ErrorKind::kCheckpoint,
                file + ": announces a header of " + std::to_string(length) + " bytes, more than " +
                    std::to_string(kMaxSafetensorsHeaderBytes) + ": not a safetensors file");
  if (static_cast<int64_t>(length) > file_bytes - 8)
    throw Error(ErrorKind::kCheckpoint, file + ": announces a header of " + std::to_string(length) +
                                            " bytes but has only " + std::to_string(file_bytes) +
                                            " in all: truncated");
  return static_cast<int64_t>(length);
}

std::vector<TensorInfo> parse_safetensors_header(std::string_view header, int64_t file_bytes,
                                                 const std::string& file) {
  const int64_t data_begin = 8 + static_cast<int64_t>(header.size());
  if (header.empty() || header.front() != '{')
    throw Error(ErrorKind::kCheckpoint, file + ": header does not start with '{'");
  // The JSON reader would take it for the end of the text.
  if (header.find('\0') != std::string_view::npos)
    throw Error(ErrorKind::kCheckpoint, file + ": header has a NUL byte");
  HeaderReader reader(file, data_begin);
  json::sax_parse(header, &reader);  // failures throw
  std::vector<TensorInfo> tensors = reader.take();
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  check_tiling(tensors, data_begin, file_bytes, file);
  return tensors;
}

std::string_view safetensors_dtype_name(DType dtype) {
  for (const DTypeName& row : kDTypeNames)
    if (row.dtype == dtype) return row.name;
  return "?";
}

void write_safetensors(const std::filesystem::path& file, std::span<const TensorData> tensors) {
  std::string text = "{";
  int64_t offset = 0;
  for (const TensorData& t : tensors) {
    const int64_t end = offset + std::ssize(t.data);
    const json entry = {{"dtype", safetensors_dtype_name(t.dtype)},
                        {"shape", t.shape},
                        {"data_offsets", {offset, end}}};
    if (text.size() > 1) text += ',';
    text += json(t.name).dump();
    text += ':';
    text += entry.dump();
    offset = end;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  std::ofstream out(file, std::ios::binary);
  const auto length = static_cast<uint64_t>(text.size());
  for (int i = 0; i < 8; ++i) out.put(static_cast<char>(length >> (8 * i)));
  out << text;
  for (const TensorData& t : tensors)
    out.write(reinterpret_cast<const char*>(t.data.data()), std::ssize(t.data));
  out.close();
  if (!out) throw Error(ErrorKind::kCheckpoint, file.string() + ": cannot be written");
}

}  // namespace nibble
