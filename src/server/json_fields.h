// Typed reading of a JSON object that a stranger sent. The first thing wrong is kept as an ApiError
// that names the field; after it every read gives its default. null counts as absent.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace nibble::server {

using Json = nlohmann::ordered_json;  // tools keep the order of their properties

// At most 64 levels, 1,000,000 values and 1,024 keys in one object: what bounds the memory and the
// time of reading a body. nullopt: `error` says why.
std::optional<Json> parse_json_object(std::string_view body, ApiError& error);

// UTF-8 for sure, compact.
std::string to_text(const Json& json);

// What a value takes in memory, about and rather too much, with the text that it will become.
size_t held_bytes(const Json& json);

class JsonFields {
 public:
  // `path` is put before the names of fields in errors. All must outlive this.
  JsonFields(const Json& object, std::string path, std::optional<ApiError>& error);

  bool has(const char* name) const { return find(name) != nullptr; }
  const Json* find(const char* name) const;  // null counts as absent
  const Json& json() const { return *object_; }

  bool boolean(const char* name, bool otherwise);
  int64_t integer(const char* name, int64_t otherwise, int64_t low, int64_t high);
  double number(const char* name, double otherwise, double low, double high);
  std::string string(const char* name, std::string otherwise = {});
  const Json* array(const char* name);
  const Json* object(const char* name);
  std::vector<int32_t> ids(const char* name);

  void fail(const char* name, const std::string& message);
  std::optional<ApiError>& error() { return *error_; }  // to be shared with inner objects
  bool failed() const { return error_->has_value(); }
  std::string path_of(const char* name) const;

 private:
  const Json* object_;
  std::string path_;
  std::optional<ApiError>* error_;
};

// The body's object, read by `read`.
template <typename Read>
std::optional<ApiError> read_body(std::string_view body, Read read) {
  ApiError bad;
  const auto json = parse_json_object(body, bad);
  if (!json) return bad;
  std::optional<ApiError> error;
  JsonFields fields(*json, "", error);
  read(fields);
  return error;
}

}  // namespace nibble::server
