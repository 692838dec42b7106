#include "text/grammar/tag_parts.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;  // an object's properties come in the schema's order
using Keep = std::function<std::string(GrammarSpec& part)>;
using RulesOf = std::function<std::string(const std::string& schema)>;

constexpr std::array kPlaces = std::to_array<std::pair<const char*, GrammarSpec::Kind>>({
    {"json_schema", GrammarSpec::Kind::kJsonSchema},
    {"pattern", GrammarSpec::Kind::kRegex},
    {"grammar", GrammarSpec::Kind::kEbnf},
});

std::string keep_part(Json& format, const char* place, GrammarSpec::Kind kind, const Keep& keep,
                      const RulesOf& rules_of) {
  const std::string function = format.value("function", "");
  GrammarSpec part{.kind = kind, .lenient = format.value("lenient", false)};
  format.erase("lenient");
  format.erase("function");
  Json& text = format[place];
  const bool is_json = kind == GrammarSpec::Kind::kJsonSchema;
  part.text = is_json ? text.dump() : text.get<std::string>();
  std::string why = keep(part);
  if (!why.empty()) return why + (function.empty() ? "" : " (in the function '" + function + "')");
  text = is_json ? Json::parse(part.text) : Json(part.text);
  if (is_json && format.value("type", "") == "json_schema" && format.size() == 2)
    if (std::string rules = rules_of(part.text); !rules.empty())
      format = {{"type", "grammar"}, {"grammar", std::move(rules)}};
  return "";
}

std::string keep_in(Json& tag, const Keep& keep, const RulesOf& rules_of) {
  for (const auto& [place, kind] : kPlaces) {
    if (tag.is_object() && tag.contains(place)) return keep_part(tag, place, kind, keep, rules_of);
  }
  for (Json& inner : tag) {
    if (!inner.is_structured()) continue;
    if (std::string why = keep_in(inner, keep, rules_of); !why.empty()) return why;
  }
  return "";
}

}  // namespace

std::string keep_parts(std::string& tag, const Keep& keep, const RulesOf& rules_of) {
  Json json = Json::parse(tag, nullptr, /*allow_exceptions=*/false);
  if (!json.is_structured()) return "";
  std::string why = keep_in(json, keep, rules_of);
  tag = json.dump();
  return why;
}

}  // namespace nibble
