#include "text/grammar/kept_schema.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar/regex_text.h"
#include "text/utf8.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;  // an object's properties come in the schema's order
using Fits = std::function<bool(const std::string&)>;

// xgrammar takes the first of these that a schema has, and looks at nothing beside it.
constexpr std::array<std::string_view, 6> kAppliers = {"$ref",  "const", "enum",
                                                       "anyOf", "oneOf", "allOf"};

// It leaves these out without a word.
constexpr std::array<std::string_view, 12> kIgnored = {
    "not",          "if",          "then",
    "else",         "contains",    "dependentRequired",
    "minContains",  "maxContains", "dependentSchemas",
    "dependencies", "$dynamicRef", "$recursiveRef"};

// Of parts of one schema: a copy is at most as large as the schema.
constexpr int kMaxCopies = 64;

struct Word {
  const char* name;
  const char* type;  // of the values of which it says something
};
constexpr std::array kWords = std::to_array<Word>({
    {"minLength", "string"},
    {"maxLength", "string"},
    {"pattern", "string"},
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"},
    {"multipleOf", "number"},
    {"items", "array"},
    {"prefixItems", "array"},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"unevaluatedItems", "array"},
    {"properties", "object"},
    {"required", "object"},
    {"additionalProperties", "object"},
    {"patternProperties", "object"},
    {"propertyNames", "object"},
    {"minProperties", "object"},
    {"maxProperties", "object"},
    {"unevaluatedProperties", "object"},
});

std::string applier_of(const Json& schema) {  // "": none
  for (const std::string_view name : kAppliers) {
    if (schema.contains(name)) return std::string(name);
  }
  return "";
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x80; });
}

// A pattern as xgrammar reads it right inside a string: characters above ASCII and \xhh, of which
// one of its two readers takes all digits that follow, as \u{...}, "(...)?" as "(...){0,1}", since
// by "(ab*)?" it would let a "b" through, and "." without line ends, which stand as they are in
// tags that are not JSON.
std::string as_read(const std::string& pattern) {
  std::string out;
  bool in_class = false, last_escaped = false;
  for (size_t at = 0; at < pattern.size();) {
    const bool escaped = pattern[at] == '\\' && at + 1 < pattern.size();
    const size_t from = at + (escaped ? 1 : 0);
    const auto unit = utf8::first_unit(std::string_view(pattern).substr(from));
    const std::string one = pattern.substr(from, unit.bytes);
    const bool behind_group = !in_class && at > 0 && out.back() == ')' && !last_escaped;
    at = from + unit.bytes;
    last_escaped = escaped;
    if (!escaped && one == "[") in_class = true;
    if (!escaped && one == "]") in_class = false;
    Numbered hex;
    if (escaped && one == "x") hex = numbered(std::string_view(pattern).substr(from - 1));
    if (hex.length > 0) at = from - 1 + hex.length;
    if (!escaped && !in_class && one == ".") {
      out += R"([^\n\r])";
    } else if (!escaped && behind_group && one == "?") {
      out += "{0,1}";
    } else if (hex.length == 0 && (is_ascii(one) || unit.kind != utf8::Kind::kCharacter)) {
      out += (escaped ? "\\" : "") + one;
    } else {
      std::array<char, 16> digits{};
      const uint32_t c = hex.length > 0 ? hex.character : utf8::code_point(one);
      std::snprintf(digits.data(), digits.size(), "\\u{%x}", static_cast<unsigned>(c));
      out += digits.data();
    }
  }
  return out;
}

bool is_of_type(const Json& value, std::string_view type) {
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
  }
  return (type == "null" && value.is_null()) || (type == "boolean" && value.is_boolean()) ||
         (type == "number" && value.is_number()) || (type == "string" && value.is_string()) ||
         (type == "array" && value.is_array()) || (type == "object" && value.is_object());
}

Json list_of(const Json& one_or_more) {
  return one_or_more.is_array() ? one_or_more : Json::array({one_or_more});
}

bool is_of_types(const Json& value, const Json& types) {
  return std::any_of(types.begin(), types.end(), [&](const Json& type) {
    return type.is_string() && is_of_type(value, type.get_ref<const std::string&>());
  });
}

// Each of `some` is among `all`.
bool are_among(const Json& some, const Json& all) {
  return std::all_of(some.begin(), some.end(), [&](const Json& type) {
    return std::find(all.begin(), all.end(), type) != all.end() ||
           (type == "integer" && std::find(all.begin(), all.end(), "number") != all.end());
  });
}

// xgrammar writes whole numbers past 64 bits with the digits of a double. One past those of JSON's
// reader is such already: it may be another than was asked for if 15 digits do not say it.
bool has_long_number(const Json& value) {
  if (value.is_structured()) return std::any_of(value.begin(), value.end(), has_long_number);
  if (value.is_number_unsigned()) return !std::in_range<int64_t>(value.get<uint64_t>());
  if (!value.is_number_float() || std::abs(value.get<double>()) < 0x1p63) return false;
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%.14e", value.get<double>());
  return std::strtod(digits.data(), nullptr) != value.get<double>();
}

// In tags xgrammar takes an array or object as closed that says nothing of others: here one that
// must have more than it describes.
void open_for_least(Json& schema) {
  const auto is_more = [&](const char* least, const char* described) {
    const Json number = schema.value(least, Json(0));
    const size_t count = schema.contains(described) ? schema[described].size() : 0;
    return number.is_number() && number.get<double>() > static_cast<double>(count);
  };
  const auto has = [&](const char* name) { return schema.contains(name); };
  if (!has("items") &&
      (is_more("minItems", "prefixItems") || is_more("minContains", "prefixItems")))
    schema["items"] = true;
  if (!has("additionalProperties") && !has("propertyNames") && !has("patternProperties") &&
      is_more("minProperties", "properties"))
    schema["additionalProperties"] = true;
}

class Keeper {
 public:
  Keeper(Json& root, bool lenient, const Fits& fits)
      : root_(root), lenient_(lenient), fits_(fits) {}
  void keep(Json& schema);
  const std::string& why() const { return why_; }

 private:
  void fail(std::string why) {
    if (!lenient_ && why_.empty()) why_ = std::move(why);
  }
  void keep_beside(Json& schema, const std::string& applier);
  void keep_values(Json& schema, const std::string& applier);
  bool merge_required(Json& schema, const std::vector<std::string>& beside);
  // A schema that says no type: is told to, will say what its words are of, or stays as it is.
  enum class Untyped { kWrite, kWillSay, kStays };
  bool has_types(Json& schema, const Json& types, Untyped untyped, int depth);
  void say_type(Json& schema);
  void keep_object(Json& schema);
  void keep_required(Json& schema);
  void keep_names(Json& schema);
  bool keep_pattern(Json& pattern);
  bool may_match(const std::string& pattern, const std::string& name);
  void keep_inside(Json& schema);

  Json& root_;
  const bool lenient_;
  const Fits& fits_;
  int copies_ = 0;
  std::string why_;
};

void Keeper::keep(Json& schema) {
  if (!schema.is_object() || !why_.empty()) return;
  for (const std::string_view name : kIgnored) {
    if (schema.contains(name)) fail("the keyword \"" + std::string(name) + "\"");
  }
  if (schema.value("uniqueItems", Json()) == true) fail("the keyword \"uniqueItems\"");
  if (const std::string applier = applier_of(schema); !applier.empty()) {
    keep_beside(schema, applier);
  }
  if (applier_of(schema).empty()) {
    say_type(schema);
    const Json types = schema.contains("type") ? list_of(schema["type"]) : Json::array();
    if (schema.contains("type") && types.empty()) fail("an empty list of types");
    if (std::find(types.begin(), types.end(), "object") != types.end()) keep_object(schema);
    if (schema.contains("unevaluatedItems") && !schema.contains("items")) {
      Json others = schema["unevaluatedItems"];
      schema["items"] = std::move(others);
    }
    open_for_least(schema);
    if (schema.contains("pattern") && !keep_pattern(schema["pattern"])) schema.erase("pattern");
  }
  keep_inside(schema);
}

void Keeper::keep_beside(Json& schema, const std::string& applier) {
  if (applier == "const" || applier == "enum") return keep_values(schema, applier);
  std::vector<std::string> beside;
  for (const std::string_view other : kAppliers) {
    if (other != applier && schema.contains(other)) beside.emplace_back(other);
  }
  for (const Word& word : kWords) {
    if (schema.contains(word.name)) beside.emplace_back(word.name);
  }
  if (beside.empty() && schema.contains("type")) {
    Json alone = {{applier, schema[applier]}};
    const bool has = has_types(alone, list_of(schema["type"]), Untyped::kWrite, 0);
    schema[applier] = alone[applier];
    if (!has) beside.emplace_back("type");
  }
  if (beside.empty() || merge_required(schema, beside)) return;
  fail("\"" + beside[0] + "\" beside \"" + applier + "\"");
  // What is described beside it is worth more than what is said of it all.
  const bool is_described = schema.contains("properties") || schema.contains("items");
  if (lenient_ && is_described && applier != "$ref") schema.erase(applier);
}

// Of the values those of the type that is said.
void Keeper::keep_values(Json& schema, const std::string& applier) {
  for (const std::string_view other : kAppliers) {
    if (other != applier && schema.contains(other))
      return fail("\"" + std::string(other) + "\" beside \"" + applier + "\"");
  }
  for (const Word& word : kWords) {
    if (schema.contains(word.name))
      return fail("\"" + std::string(word.name) + "\" beside \"" + applier + "\"");
  }
  if (has_long_number(schema[applier]))
    return fail("a number past 64 bits in an \"" + applier + '"');
  if (!schema.contains("type")) return;
  const Json types = list_of(schema["type"]);
  const Json values = applier == "enum" ? schema["enum"] : Json::array({schema["const"]});
  if (!values.is_array()) return;
  Json kept = Json::array();
  for (const Json& value : values) {
    if (is_of_types(value, types)) kept.push_back(value);
  }
  if (kept.empty()) return fail("a type that no value of its \"" + applier + "\" has");
  if (applier == "enum") schema["enum"] = std::move(kept);
}

// {"properties": ..., "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}: each of them with all
// that stands beside. False: it is another case.
bool Keeper::merge_required(Json& schema, const std::vector<std::string>& beside) {
  if (applier_of(schema) != "anyOf" || !schema["anyOf"].is_array()) return false;
  copies_ += static_cast<int>(schema["anyOf"].size());
  if (copies_ > kMaxCopies) return false;
  const auto is_other = [](const std::string& name) {
    return std::find(kAppliers.begin(), kAppliers.end(), name) != kAppliers.end();
  };
  if (std::any_of(beside.begin(), beside.end(), is_other)) return false;
  Json merged = Json::array();
  for (const Json& branch : schema["anyOf"]) {
    const bool plain = branch.is_object() && branch.contains("required") &&
                       branch["required"].is_array() && branch.size() == 1;
    if (!plain) return false;
    Json whole = schema;
    for (const char* name : {"anyOf", "$defs", "definitions"}) whole.erase(name);
    Json required = schema.value("required", Json::array());
    if (!required.is_array()) return false;
    for (const Json& name : branch["required"]) required.push_back(name);
    whole["required"] = std::move(required);
    if (!whole.contains("type")) whole["type"] = "object";
    merged.push_back(std::move(whole));
  }
  schema["anyOf"] = std::move(merged);
  return true;
}

// Whether all that it allows is of these types, once it is kept.
bool Keeper::has_types(Json& schema, const Json& types, Untyped untyped, int depth) {
  constexpr int kMaxDepth = 32;  // of references that may refer to each other
  if (!schema.is_object() || depth > kMaxDepth) return false;
  const std::string name = applier_of(schema);
  if (name.empty() && untyped == Untyped::kWillSay) say_type(schema);
  if (schema.contains("type")) return are_among(list_of(schema["type"]), types);
  if (name.empty()) {
    const bool may_write = untyped == Untyped::kWrite;
    if (may_write) schema["type"] = types.size() == 1 ? types[0] : types;
    return may_write;
  }
  if (name == "const") return is_of_types(schema["const"], types);
  if (name == "$ref") {
    if (!schema["$ref"].is_string()) return false;
    const auto& uri = schema["$ref"].get_ref<const std::string&>();
    if (uri == "#" || !uri.starts_with("#/")) return false;
    try {
      const Json::json_pointer place(uri.substr(1));
      Json target = root_.at(place);  // a copy: others may refer there
      const std::string parent = place.parent_pointer().to_string();
      const bool is_kept = parent == "/$defs" || parent == "/definitions";
      return has_types(target, types, is_kept ? Untyped::kWillSay : Untyped::kStays, depth + 1);
    } catch (const nlohmann::json::exception&) {
      return false;
    }
  }
  if (!schema[name].is_array()) return false;
  for (Json& one : schema[name]) {
    if (name == "enum" ? !is_of_types(one, types) : !has_types(one, types, untyped, depth + 1)) {
      return false;
    }
  }
  return true;
}

void Keeper::say_type(Json& schema) {
  if (schema.contains("type")) return;
  Json types = Json::array();
  for (const Word& word : kWords) {
    const bool is_new = std::find(types.begin(), types.end(), word.type) == types.end();
    if (is_new && schema.contains(word.name)) types.push_back(word.type);
  }
  if (!types.empty()) schema["type"] = types.size() == 1 ? types[0] : types;
}

void Keeper::keep_object(Json& schema) {
  if (schema.contains("unevaluatedProperties") && !schema.contains("additionalProperties")) {
    Json others = schema["unevaluatedProperties"];
    schema["additionalProperties"] = std::move(others);
  }
  keep_names(schema);
  keep_required(schema);
  // A name that comes twice counts once.
  const bool open = schema.value("additionalProperties", Json(true)) != false ||
                    schema.contains("patternProperties") || schema.contains("propertyNames");
  const Json least = schema.value("minProperties", Json(0));
  std::set<Json> required;
  if (schema.contains("required") && schema["required"].is_array()) {
    required.insert(schema["required"].begin(), schema["required"].end());
  }
  if (open && least.is_number() && least.get<double>() > static_cast<double>(required.size()) + 1) {
    fail("\"minProperties\" of properties with any name");
  }
}

// What is required is described.
void Keeper::keep_required(Json& schema) {
  if (!schema.contains("required") || !schema["required"].is_array()) return;
  const Json others = schema.value("additionalProperties", Json(true));
  const Json required = schema["required"];  // a copy: what follows moves the schema's members
  for (const Json& name : required) {
    if (!name.is_string()) return fail("a \"required\" that is no list of names");
    const auto& key = name.get_ref<const std::string&>();
    if (schema.contains("properties") && !schema["properties"].is_object()) return;
    if (schema.contains("properties") && schema["properties"].contains(key)) continue;
    if (schema.contains("patternProperties") || schema.contains("propertyNames") ||
        others == false) {
      return fail("a required property that \"properties\" does not have: \"" + key + "\"");
    }
    if (others.is_object() && ++copies_ > kMaxCopies) {
      return fail("more than " + std::to_string(kMaxCopies) +
                  " required properties that "
                  "\"properties\" does not have");
    }
    schema["properties"][key] = others;
  }
}

// Names by a pattern: xgrammar looks at one for those that "properties" does not have.
void Keeper::keep_names(Json& schema) {
  std::vector<std::string> names;
  if (schema.contains("properties") && schema["properties"].is_object()) {
    for (const auto& item : schema["properties"].items()) names.push_back(item.key());
  }
  const bool may_have_names = !names.empty() || schema.contains("patternProperties") ||
                              schema.value("additionalProperties", Json(true)) != false;
  if (!may_have_names || schema.value("propertyNames", Json()) == true)
    schema.erase("propertyNames");
  if (schema.contains("propertyNames")) {
    const bool are_strings =
        has_types(schema["propertyNames"], {"string"}, Untyped::kWrite, /*depth=*/0);
    if (!are_strings) fail("\"propertyNames\" that need not be strings");
    if (!are_strings) schema.erase("propertyNames");
    if (!names.empty()) fail("\"propertyNames\" beside \"properties\"");
    if (schema.contains("patternProperties"))
      fail("\"propertyNames\" beside \"patternProperties\"");
  }
  if (!schema.contains("patternProperties") || !schema["patternProperties"].is_object()) return;
  Json kept = Json::object();
  for (const auto& item : schema["patternProperties"].items()) {
    Json key = item.key();
    if (!keep_pattern(key)) continue;
    kept[key.get<std::string>()] = item.value();
    for (const std::string& name : names) {
      if (may_match(item.key(), name)) fail("a pattern for the property \"" + name + "\"");
    }
  }
  if (kept.size() > 1) fail("several \"patternProperties\"");
  schema["patternProperties"] = std::move(kept);
  schema["additionalProperties"] = false;  // or its names could be those of the pattern
}

bool Keeper::may_match(const std::string& pattern, const std::string& name) {
  constexpr uint32_t kMaxSteps = 10'000;
  if (!is_ascii(pattern) || !is_ascii(name)) return true;
  const auto text = [](const std::string& s) { return reinterpret_cast<PCRE2_SPTR>(s.data()); };
  int error = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(text(pattern), pattern.size(), 0, &error, &at, nullptr), pcre2_code_free);
  if (code == nullptr) return true;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMaxSteps);
  return pcre2_match(code.get(), text(name), name.size(), 0, 0, data.get(), context.get()) !=
         PCRE2_ERROR_NOMATCH;
}

// False: it is left out.
bool Keeper::keep_pattern(Json& pattern) {
  if (!pattern.is_string()) return true;
  std::string text = as_read(with_brackets_escaped(pattern.get_ref<const std::string&>()));
  if (!fits_(text)) {
    fail("the pattern \"" + text.substr(0, 100) + "\", of what JSON writes with a backslash");
    return false;
  }
  pattern = std::move(text);
  return true;
}

void Keeper::keep_inside(Json& schema) {
  constexpr std::array kMaps = {"properties", "patternProperties", "$defs", "definitions"};
  constexpr std::array kValues = {"enum", "const", "default", "examples", "required"};
  for (auto& item : schema.items()) {
    const std::string key = item.key();
    const auto is_one_of = [&](const auto& list) {
      return std::find(list.begin(), list.end(), key) != list.end();
    };
    Json& value = item.value();
    if (is_one_of(kValues) || !value.is_structured()) continue;
    if (is_one_of(kMaps) || value.is_array()) {
      for (Json& inner : value) keep(inner);
    } else {
      keep(value);  // of an unknown keyword, too: a "$ref" may lead there
    }
  }
}

}  // namespace

bool keep_schema(std::string& schema, bool lenient, const Fits& fits, std::string& why) {
  const Json before = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
  if (before.is_discarded()) return true;
  Json after = before;
  Keeper keeper(after, lenient, fits);
  keeper.keep(after);
  why = keeper.why();
  if (!why.empty()) return false;
  if (after != before) schema = after.dump();
  return true;
}

}  // namespace nibble
