#include "text/grammar/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;  // an object's properties come in the schema's order

struct FormatPattern {
  std::string format, pattern;
};

const std::vector<FormatPattern>& format_patterns() {
  static const std::vector<FormatPattern> patterns = [] {
    // Days that there are, from the year 1 on; no leap seconds, which most programs do not read.
    const std::string date =
        R"(((000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-)"
        R"(((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30))"
        R"(|02-(0[1-9]|1[0-9]|2[0-8])))"
        R"(|([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29))";
    const std::string time =
        R"(([01][0-9]|2[0-3])(:[0-5][0-9]){2}(\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))";
    const std::string word = "[A-Za-z0-9_!#$%&'*+/=?^`{|}~-]+";
    const std::string label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
    const std::string host = label + "(\\." + label + ")*";
    const std::string group = "[0-9A-Fa-f]{1,4}";
    const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    const std::string four_bytes = "(" + byte + "\\.){3}" + byte;
    // Eight groups, the last two also as four bytes; "::" stands for one or more of them.
    const auto groups = [&](int count) {
      return "(" + group + ":){" + std::to_string(count) + "}";
    };
    const auto at_most = [&](int count) {  // of groups in front of "::"
      if (count == 0) return std::string();
      return "((" + group + ":){0," + std::to_string(count - 1) + "}" + group + "){0,1}";
    };
    const std::string last_two = "(" + group + ":" + group + "|" + four_bytes + ")";
    std::string ipv6 = groups(6) + last_two;
    for (int before = 0; before < 6; ++before) {
      ipv6 += "|" + at_most(before) + "::" + groups(5 - before) + last_two;
    }
    ipv6 += "|" + at_most(6) + "::" + group + "|" + at_most(7) + "::";
    return std::vector<FormatPattern>{
        {"email", "^" + word + "(\\." + word + ")*@" + host + "$"},
        {"hostname", "^" + host + "$"},
        {"json-pointer", R"(^(/([^/~]|~[01])*)*$)"},
        {"relative-json-pointer", R"(^(0|[1-9][0-9]*)(#|(/([^/~]|~[01])*)*)$)"},
        {"date", "^" + date + "$"},
        {"time", "^" + time + "$"},
        {"date-time", "^" + date + "T" + time + "$"},
        {"ipv4", "^" + four_bytes + "$"},
        {"ipv6", "^(" + ipv6 + ")$"},
    };
  }();
  return patterns;
}

// False: there was nothing to replace. Names of properties and values of enums are told apart from
// keywords by where they stand.
bool replace_formats(Json& schema) {
  if (!schema.is_structured()) return false;
  bool replaced = false;
  if (schema.is_object() && schema.contains("format") && schema.contains("pattern")) {
    schema.erase("format");
    replaced = true;
  } else if (schema.is_object() && schema.contains("format") && schema["format"].is_string()) {
    for (const auto& [format, pattern] : format_patterns()) {
      if (schema["format"] != format) continue;
      schema.erase("format");
      schema["pattern"] = pattern;
      replaced = true;
      break;
    }
  }
  for (auto& item : schema.items()) {
    const std::string key = schema.is_object() ? item.key() : "";
    if (key == "enum" || key == "const" || !item.value().is_structured()) continue;
    if (key == "properties" || key == "patternProperties" || key == "$defs" ||
        key == "definitions") {
      for (auto& named : item.value().items()) replaced |= replace_formats(named.value());
    } else {
      replaced |= replace_formats(item.value());
    }
  }
  return replaced;
}

}  // namespace

std::string with_patterns_for_formats(const std::string& schema) {
  Json json = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !replace_formats(json)) return schema;
  return json.dump();
}

}  // namespace nibble
