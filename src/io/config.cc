#include "io/config.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/files.h"

namespace nibble {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr std::string_view kNoNumbers[] = {"-Infinity", "Infinity", "NaN"};

// What a message says was found: scalars as they are, anything large by its kind.
std::string describe(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 80) + "...";
  return text;
}

std::string range(double min, double max) {
  const auto print = [](double v) {
    char text[32];
    std::snprintf(text, sizeof text, "%.12g", v);
    return std::string(text);
  };
  return "from " + print(min) + " to " + print(max);
}

// Python writes Infinity and NaN, which JSON does not have: as texts, which are no numbers where
// one is read.
std::string without_infinity(std::string_view text) {
  std::string all;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    const auto word = std::ranges::find_if(
        kNoNumbers, [&](std::string_view name) { return !in_string && rest.starts_with(name); });
    if (word != std::end(kNoNumbers)) {
      all += '"' + std::string(*word) + '"', i += word->size() - 1;
      continue;
    }
    if (in_string && text[i] == '\\' && i + 1 < text.size())
      all += text[i++];
    else if (text[i] == '"')
      in_string = !in_string;
    all += text[i];
  }
  return all;
}

}  // namespace

struct Config::Node {
  json value;
};

Config::Config(std::shared_ptr<const Node> node, std::string origin, std::string prefix)
    : node_(std::move(node)), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

Config Config::load(const std::filesystem::path& file) {
  return parse(read_text_file(file, kMaxConfigBytes), file.string());
}

Config Config::parse(std::string_view text, std::string origin) {
  const auto refuse_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > kMaxDepth)
      throw Error(ErrorKind::kCheckpoint, origin + ": nested deeper than 64 levels");
    return true;
  };
  auto node = std::make_shared<Node>();
  try {
    node->value = json::parse(without_infinity(text), refuse_depth);
  } catch (const json::exception& e) {
    throw Error(ErrorKind::kCheckpoint, origin + ": not valid JSON: " + e.what());
  }
  if (!node->value.is_object())
    throw Error(ErrorKind::kCheckpoint,
                origin + ": found " + describe(node->value) + ", expected a JSON object");
  return Config(std::move(node), std::move(origin), "");
}

void Config::fail(const std::string& key, const std::string& what) const {
  throw Error(ErrorKind::kCheckpoint, origin_ + ": " + prefix_ + key + ": " + what);
}

std::vector<std::string> Config::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : node_->value.items())
    if (!value.is_null()) names.push_back(name);
  return names;
}

bool Config::has(const std::string& key) const {
  const auto it = node_->value.find(key);
  return it != node_->value.end() && !it->is_null();
}

namespace {

// The value under a key, or the failure "is missing".
const json& at(const Config& config, const json& object, const std::string& key,
               const std::string& expected) {
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) config.fail(key, "is missing; expected " + expected);
  return *it;
}

int64_t as_integer(const Config& config, const json& value, const std::string& key, int64_t min,
                   int64_t max) {
  const std::string expected =
      "a whole number from " + std::to_string(min) + " to " + std::to_string(max);
  constexpr double kExact = 9007199254740992.0;  // 2^53
  int64_t number = 0;
  bool ok = true;
  if (value.is_number_unsigned()) {
    const auto wide = value.get<uint64_t>();
    ok = wide <= static_cast<uint64_t>(INT64_MAX);
    number = static_cast<int64_t>(wide);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    const double real = value.get<double>();
    ok = std::fabs(real) <= kExact && real == std::floor(real);
    if (ok) number = static_cast<int64_t>(real);
  } else {
    ok = false;
  }
  if (!ok || number < min || number > max)
    config.fail(key, "found " + describe(value) + ", expected " + expected);
  return number;
}

std::string as_text(const Config& config, const json& value, const std::string& key) {
  if (!value.is_string()) config.fail(key, "found " + describe(value) + ", expected a string");
  return value.get<std::string>();
}

// Calls read(value) for each value of a list, or once for a single value.
template <typename T, typename Read>
std::vector<T> as_list(const json& value, const Read& read) {
  std::vector<T> list;
  if (!value.is_array()) return {read(value)};
  for (const json& item : value) list.push_back(read(item));
  return list;
}

}  // namespace

int64_t Config::integer(const std::string& key, int64_t min, int64_t max) const {
  const std::string expected =
      "a whole number from " + std::to_string(min) + " to " + std::to_string(max);
  return as_integer(*this, at(*this, node_->value, key, expected), key, min, max);
}

int64_t Config::integer_or(const std::string& key, int64_t fallback, int64_t min,
                           int64_t max) const {
  return has(key) ? integer(key, min, max) : fallback;
}

double Config::number(const std::string& key, double min, double max) const {
  const std::string expected = "a number " + range(min, max);
  const json& value = at(*this, node_->value, key, expected);
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= min && number <= max))
    fail(key, "found " + describe(value) + ", expected " + expected);
  return number;
}

double Config::number_or(const std::string& key, double fallback, double min, double max) const {
  return has(key) ? number(key, min, max) : fallback;
}

bool Config::boolean(const std::string& key) const {
  const json& value = at(*this, node_->value, key, "true or false");
  if (!value.is_boolean()) fail(key, "found " + describe(value) + ", expected true or false");
  return value.get<bool>();
}

bool Config::boolean_or(const std::string& key, bool fallback) const {
  return has(key) ? boolean(key) : fallback;
}

std::string Config::text(const std::string& key) const {
  return as_text(*this, at(*this, node_->value, key, "a string"), key);
}

std::string Config::text_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

std::vector<std::string> Config::texts(const std::string& key) const {
  return as_list<std::string>(at(*this, node_->value, key, "a list of strings"),
                              [&](const json& item) { return as_text(*this, item, key); });
}

std::vector<int64_t> Config::integers(const std::string& key, int64_t min, int64_t max) const {
  return as_list<int64_t>(at(*this, node_->value, key, "a list of whole numbers"),
                          [&](const json& item) { return as_integer(*this, item, key, min, max); });
}

std::optional<Config> Config::object(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  const json& value = *node_->value.find(key);
  if (!value.is_object()) fail(key, "found " + describe(value) + ", expected an object");
  return Config(std::make_shared<Node>(Node{value}), origin_, prefix_ + key + ".");
}

std::string Config::dump() const {
  return node_->value.dump(2, ' ', false, json::error_handler_t::replace);
}

namespace {

json normal_rope(const Config& config, const Config& dict) {
  json rope = json::parse(dict.dump());
  if (rope.contains("type") && !rope.contains("rope_type")) rope["rope_type"] = rope["type"];
  rope.erase("type");
  for (const char* key : {"factor", "low_freq_factor", "long_factor"})
    if (rope.contains(key) && !rope.contains("rope_type"))
      dict.fail("rope_type", std::string("is missing beside ") + key);
  if (!rope.contains("rope_type")) rope["rope_type"] = "default";
  if (!rope.contains("rope_theta") && config.has("rope_theta"))
    rope["rope_theta"] = config.number("rope_theta", 1e-3, 1e12);
  return rope;
}

}  // namespace

Config rope_parameters(const Config& config) {
  const std::optional<Config> modern = config.object("rope_parameters");
  const std::optional<Config> former = config.object("rope_scaling");
  json rope = json{{"rope_type", "default"}};
  if (modern) rope = normal_rope(config, *modern);
  if (former) {
    const json other = normal_rope(config, *former);
    if (modern && rope != other) config.fail("rope_scaling", "disagrees with rope_parameters");
    rope = other;
  }
  if (!modern && !former && config.has("rope_theta"))
    rope["rope_theta"] = config.number("rope_theta", 1e-3, 1e12);
  if (!rope.contains("rope_theta")) config.fail("rope_theta", "is missing; expected a number");
  const std::string name = modern ? ": rope_parameters" : former ? ": rope_scaling" : "";
  return Config::parse(rope.dump(), config.origin() + name);
}

}  // namespace nibble
