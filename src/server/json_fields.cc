#include "server/json_fields.h"

#include <array>
#include <cmath>
#include <new>

#include "text/json_scan.h"
#include "text/memory_use.h"

namespace nibble::server {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxValues = 1'000'000;
constexpr size_t kMaxKeys = 1'024;

// One look over the text before it becomes values: nullptr, or what there is too much of.
// Malformed JSON is left to the parser.
const char* too_much(std::string_view body) {
  std::array<size_t, kMaxDepth + 1> keys{};  // per open object; arrays are not counted
  std::array<bool, kMaxDepth + 1> is_object{};
  size_t depth = 0;
  size_t values = 1;
  const char* what = nullptr;
  for_each_outside_strings(body, [&](char c) {
    if (c == '{' || c == '[') {
      if (depth == kMaxDepth) return what = "nested deeper than 64 levels", false;
      ++depth;
      ++values;
      keys[depth] = 0;
      is_object[depth] = c == '{';
    }
    if ((c == '}' || c == ']') && depth > 0) --depth;
    if (c == ',') {
      if (++values > kMaxValues) return what = "more than 1,000,000 values", false;
      if (is_object[depth] && ++keys[depth] >= kMaxKeys)
        return what = "an object of more than 1,024 keys", false;
    }
    return true;
  });
  return what;
}

// The whole number that a JSON number is, if it is one: 5 and 5.0.
std::optional<int64_t> whole(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto u = value.get<uint64_t>();
    if (u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(u);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double d = value.get<double>();
  if (std::floor(d) != d || std::abs(d) > 9e15) return std::nullopt;
  return static_cast<int64_t>(d);
}

std::string shown(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

}  // namespace

std::optional<Json> parse_json_object(std::string_view body, ApiError& error) {
  if (const char* what = too_much(body)) {
    error = {.message = std::string("the body has ") + what};
    return std::nullopt;
  }
  // Throws where there is no room for all of it: values that are made in part could not be
  // destroyed, which takes memory too, and nothing can be thrown from there. (A new-expression that
  // nobody uses the compiler would leave out.)
  ::operator delete(::operator new(json_bytes(body)));
  Json json = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    error = {.message = "the body is not valid JSON (UTF-8)"};
    return std::nullopt;
  }
  if (!json.is_object()) {
    error = {.message = "the body has to be a JSON object"};
    return std::nullopt;
  }
  return json;
}

std::string to_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

size_t held_bytes(const Json& json) {
  constexpr size_t kValue = 24, kString = 64, kArray = 40, kSpare = 8, kEntry = 64;
  if (json.is_string()) return kValue + kString + 2 * json.get_ref<const std::string&>().size();
  size_t bytes = kValue;
  if (json.is_array()) {
    bytes += kArray;
    for (const Json& value : json) bytes += kSpare + held_bytes(value);
  } else if (json.is_object()) {
    bytes += kArray;
    for (const auto& [key, value] : json.items()) {
      bytes += kEntry + 2 * key.size() + held_bytes(value);
    }
  }
  return bytes;
}

JsonFields::JsonFields(const Json& object, std::string path, std::optional<ApiError>& error)
    : object_(&object), path_(std::move(path)), error_(&error) {
  if (!object.is_object()) fail("", "has to be an object");
}

const Json* JsonFields::find(const char* name) const {
  if (!object_->is_object()) return nullptr;
  const auto it = object_->find(name);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::string JsonFields::path_of(const char* name) const {
  if (path_.empty() || *name == '\0') return path_ + name;
  return path_ + "." + name;
}

void JsonFields::fail(const char* name, const std::string& message) {
  if (failed()) return;
  const std::string path = path_of(name);
  *error_ = ApiError{.message = path + " " + message, .param = path};
}

bool JsonFields::boolean(const char* name, bool otherwise) {
  const Json* value = find(name);
  if (!value) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  return fail(name, "has to be true or false"), otherwise;
}

int64_t JsonFields::integer(const char* name, int64_t otherwise, int64_t low, int64_t high) {
  const Json* value = find(name);
  if (!value) return otherwise;
  const auto number = whole(*value);
  if (number && *number >= low && *number <= high) return *number;
  fail(name,
       "has to be a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  return otherwise;
}

double JsonFields::number(const char* name, double otherwise, double low, double high) {
  const Json* value = find(name);
  if (!value) return otherwise;
  if (value->is_number()) {
    const double d = value->get<double>();
    if (d >= low && d <= high) return d;
  }
  fail(name, "has to be a number from " + shown(low) + " to " + shown(high));
  return otherwise;
}

std::string JsonFields::string(const char* name, std::string otherwise) {
  const Json* value = find(name);
  if (!value) return otherwise;
  if (value->is_string()) return value->get<std::string>();
  return fail(name, "has to be a string"), otherwise;
}

const Json* JsonFields::array(const char* name) {
  const Json* value = find(name);
  if (!value || value->is_array()) return value;
  return fail(name, "has to be an array"), nullptr;
}

const Json* JsonFields::object(const char* name) {
  const Json* value = find(name);
  if (!value || value->is_object()) return value;
  return fail(name, "has to be an object"), nullptr;
}

std::vector<int32_t> JsonFields::ids(const char* name) {
  std::vector<int32_t> ids;
  const Json* values = array(name);
  if (!values) return ids;
  ids.reserve(values->size());
  for (const Json& value : *values) {
    const auto id = whole(value);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      fail(name, "has to be an array of token ids");
      return {};
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace nibble::server
