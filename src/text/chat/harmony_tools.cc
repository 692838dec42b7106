#include "text/chat/harmony_tools.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 100;  // of nested schemas; bounds the recursion below

// Pieces split at "\n" or "\r\n"; a newline at the end starts no piece.
std::vector<std::string_view> lines(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    if (newline != std::string_view::npos && line.ends_with('\r')) line.remove_suffix(1);
    out.push_back(line);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
  }
  return out;
}

// A float in the shortest digits that give it back, in Rust's notation: no exponent for
// 1e-5 <= |x| < 1e16, "1e16" and "1.5e-7" outside.
std::string float_text(double value) {
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, end - buffer);
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t digits_at = text[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(text.data() + digits_at, text.data() + text.size(), exponent);
  std::string sign, digits;
  for (const char c : text.substr(0, e)) {
    if (c == '-') sign = "-";
    if (c >= '0' && c <= '9') digits += c;
  }
  const int n = static_cast<int>(digits.size());
  if (exponent < -5 || exponent >= 16) {
    if (n > 1) digits.insert(1, ".");
    return sign + digits + "e" + std::to_string(exponent);
  }
  if (exponent < 0) return sign + "0." + std::string(-exponent - 1, '0') + digits;
  if (exponent + 1 >= n) return sign + digits + std::string(exponent + 1 - n, '0') + ".0";
  return sign + digits.insert(exponent + 1, ".");
}

std::string dump(const Json& value) {
  if (value.is_number_float()) return float_text(value.get<double>());
  if (!value.is_structured()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out = value.is_array() ? "[" : "{";
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (it != value.begin()) out += ',';
    if (value.is_object()) out += dump(Json(it.key())) + ":";
    out += dump(it.value());
  }
  return out + (value.is_array() ? "]" : "}");
}

// The member as a string; nullptr where there is none or it is something else.
const std::string* string_member(const Json& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto it = schema.find(key);
  return it == schema.end() ? nullptr : it->get_ptr<const std::string*>();
}

const Json* member(const Json& schema, const char* key) {
  if (!schema.is_object()) return nullptr;
  const auto it = schema.find(key);
  return it == schema.end() ? nullptr : &*it;
}

const Json* array_member(const Json& schema, const char* key) {
  const Json* value = member(schema, key);
  return value != nullptr && value->is_array() ? value : nullptr;
}

bool is_enum(const Json& schema) {
  const Json* values = array_member(schema, "enum");
  return values != nullptr && !values->empty();
}

// `default: ...` of the schema. A string has quotes, unless the schema is an enum: then it has them
// only where `quote_enum`.
std::string default_text(const Json& schema, bool quote_enum = false) {
  const Json& value = *member(schema, "default");
  if (!value.is_string()) return "default: " + dump(value);
  if (is_enum(schema)) return "default: " + (quote_enum ? dump(value) : value.get<std::string>());
  return "default: \"" + value.get<std::string>() + "\"";
}

std::string type_of(const Json& schema, const std::string& indent);

std::string type_or_null(const Json& schema, const std::string& indent) {
  std::string type = type_of(schema, indent);
  const Json* nullable = member(schema, "nullable");
  const bool add = nullable != nullptr && nullable->is_boolean() && nullable->get<bool>();
  if (add && type.find("null") == std::string::npos) type += " | null";
  return type;
}

std::string comment(const std::string* description, const std::string& default_value) {
  std::string text = description == nullptr ? "" : *description;
  if (description != nullptr && !default_value.empty()) text += ' ';
  text += default_value;
  return description == nullptr && default_value.empty() ? "" : " // " + text;
}

std::string one_of(const Json& variants, const std::string& indent) {
  std::string out;
  for (const Json& variant : variants) {
    out += "\n" + indent + " | " + type_or_null(variant, indent + "   ");
    out += comment(string_member(variant, "description"),
                   member(variant, "default") ? default_text(variant, true) : "");
  }
  return out;
}

// A property whose type is one of several: a line each, under the name.
std::string one_of_property(const std::string& name, const Json& property, const Json& variants,
                            const std::string& indent) {
  std::string out;
  const std::string* description = string_member(property, "description");
  const std::string* first =
      variants.empty() ? nullptr : string_member(variants.front(), "description");
  const bool above = description != nullptr && (first == nullptr || *first != *description);
  if (above) out += indent + "// " + *description + "\n";
  if (member(property, "default")) out += indent + "// " + default_text(property) + "\n";
  out += indent + name + ":\n";
  for (size_t i = 0; i < variants.size(); ++i) {
    const Json& variant = variants[i];
    const std::string* own = string_member(variant, "description");
    if (own != nullptr && description != nullptr && *own == *description) own = nullptr;
    if (i == 0 && above) own = nullptr;
    out += indent + " | " + type_or_null(variant, indent + "   ");
    out += comment(own, member(variant, "default") ? default_text(variant) : "") + "\n";
  }
  return out + indent + ",\n";
}

std::string property_text(const std::string& key, const Json& property, bool required,
                          const std::string& indent) {
  const std::string name = required ? key : key + "?";
  std::string out;
  if (const std::string* title = string_member(property, "title")) {
    out += indent + "// " + *title + "\n" + indent + "//\n";
  }
  const std::string* description = string_member(property, "description");
  if (description != nullptr && member(property, "oneOf") == nullptr) {
    out += indent + "// " + *description + "\n";
  }
  const Json* examples = array_member(property, "examples");
  if (examples != nullptr && !examples->empty()) {
    out += indent + "// Examples:\n";
    for (const Json& example : *examples) {
      if (!example.is_string()) continue;
      out += indent + "// - \"" + example.get<std::string>() + "\"\n";
    }
  }
  if (const Json* variants = array_member(property, "oneOf")) {
    return out + one_of_property(name, property, *variants, indent);
  }
  out += indent + name + ": " + type_or_null(property, indent + "    ") + ",";
  if (member(property, "default") && member(property, "oneOf") == nullptr) {
    out += " // " + default_text(property);
  }
  return out + "\n";
}

std::string object_type(const Json& schema, const std::string& indent) {
  std::string out;
  if (const std::string* description = string_member(schema, "description")) {
    out += indent + "// " + *description + "\n";
  }
  out += "{\n";
  const Json* properties = member(schema, "properties");
  if (properties != nullptr && properties->is_object()) {
    const Json* required = array_member(schema, "required");
    for (const auto& [key, property] : properties->items()) {
      const bool needed = required != nullptr &&
                          std::find(required->begin(), required->end(), key) != required->end();
      out += property_text(key, property, needed, indent);
    }
  }
  return out + indent + "}";
}

std::string string_type(const Json& schema) {
  std::string out;
  if (const Json* values = array_member(schema, "enum")) {
    for (const Json& value : *values) {
      if (!value.is_string()) continue;
      out += (out.empty() ? "\"" : " | \"") + value.get<std::string>() + "\"";
    }
  }
  return out.empty() ? "string" : out;
}

// ["string", "integer"] -> string | number
std::string type_list(const Json& types) {
  std::string out;
  for (const Json& type : types) {
    if (!type.is_string()) continue;
    if (!out.empty()) out += " | ";
    out += type == "integer" ? "number" : type.get<std::string>();
  }
  return out;
}

std::string type_of(const Json& schema, const std::string& indent) {
  if (const Json* variants = array_member(schema, "oneOf")) return one_of(*variants, indent);
  if (const Json* types = array_member(schema, "type")) {
    std::string list = type_list(*types);
    if (!list.empty()) return list;
  }
  const std::string* type = string_member(schema, "type");
  if (type == nullptr) return "any";
  if (*type == "object") return object_type(schema, indent);
  if (*type == "string") return string_type(schema);
  if (*type == "number" || *type == "integer") return "number";
  if (*type == "boolean") return "boolean";
  if (*type == "array") {
    const Json* items = member(schema, "items");
    return items == nullptr ? "Array<any>" : type_of(*items, indent) + "[]";
  }
  return "any";
}

// Parses, refusing what is nested deeper than the recursions here should go.
Result<Json> parse_json(const std::string& text, const std::string& what) {
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t, Json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  Json value = Json::parse(text, watch, false);
  if (too_deep) return Failure{what + " is nested deeper than " + std::to_string(kMaxDepth)};
  if (value.is_discarded()) return Failure{what + " is not valid JSON"};
  return value;
}

Result<std::string> function_text(const FunctionTool& tool) {
  std::string out;
  for (const std::string_view line : lines(tool.description)) {
    out.append("// ").append(line).append("\n");
  }
  if (tool.parameters.empty()) return out + "type " + tool.name + " = () => any;\n\n";
  const std::string what = "the schema of function '" + tool.name + "'";
  const Result<Json> schema = parse_json(tool.parameters, what);
  if (!schema) return Failure{schema.error()};
  if (!schema->is_object()) return Failure{what + " is not a JSON object"};
  return out + "type " + tool.name + " = (_: " + type_of(*schema, "") + ") => any;\n\n";
}

}  // namespace

Result<std::string> compact_json(const std::string& text, const std::string& what) {
  const Result<Json> value = parse_json(text, what);
  if (!value) return Failure{value.error()};
  return dump(*value);
}

Result<std::string> render_tools(std::span<const ToolNamespace> namespaces) {
  std::string out = "# Tools";
  for (const ToolNamespace& ns : namespaces) {
    out += "\n\n## " + ns.name + "\n";
    for (const std::string_view line : lines(ns.description)) {
      out.append(ns.tools.empty() ? "\n" : "\n// ").append(line);
    }
    if (ns.tools.empty()) continue;
    out += "\nnamespace " + ns.name + " {\n\n";
    for (const FunctionTool& tool : ns.tools) {
      const Result<std::string> text = function_text(tool);
      if (!text) return Failure{text.error()};
      out += *text;
    }
    out += "} // namespace " + ns.name;
  }
  return out;
}

}  // namespace nibble
