#include "text/chat/tool_format.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/chat/chat_format.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

template <typename T, size_t N>
Result<T> find_name(const std::array<std::pair<std::string_view, T>, N>& known,
                    std::string_view name, const char* what) {
  std::string list;
  for (const auto& [one, value] : known) {
    if (one == name) return value;
    list.append(list.empty() ? "" : ", ").append(one);
  }
  return Failure{std::string(what) + " '" + std::string(name) + "' is not known; known are " +
                 list};
}

Json schema_of(const FunctionTool& tool, bool any_schema) {
  const bool any = tool.parameters.empty() || (any_schema && !tool.strict);
  Json schema = any ? Json() : Json::parse(tool.parameters, nullptr, false);
  if (!schema.is_object()) schema = {{"type", "object"}};
  return schema;
}

// In a row, around a parameter's value: some models write nothing else where no end is set. Enough
// for JSON that is indented.
constexpr int kMaxBlanks = 20;

// One call, as a tag of xgrammar's structural tags.
Json call_tag(const FunctionTool& tool, ToolFormat format, bool any_schema) {
  const Json schema = schema_of(tool, any_schema);
  const std::string name = Json(tool.name).dump();
  std::string begin, end;
  Json content = {{"type", "json_schema"},
                  {"json_schema", schema},
                  {"lenient", !tool.strict},
                  {"function", tool.name}};
  switch (format) {
    case ToolFormat::kHermes:
      begin = "<tool_call>\n{\"name\": " + name + ", \"arguments\": ";
      end = "}\n</tool_call>";
      break;
    case ToolFormat::kQwen3Coder:
      begin = "<tool_call>\n<function=" + tool.name + ">\n";
      end = "\n</function>\n</tool_call>";
      content["type"] = "qwen_xml_parameter";
      content["max_whitespace_cnt"] = kMaxBlanks;
      content["excludes"] = {"</parameter>"};
      break;
    case ToolFormat::kLlama3Json:
      begin = "{\"name\": " + name + ", \"parameters\": ";
      end = "}";
      break;
    case ToolFormat::kNone:
      break;
  }
  return {{"type", "tag"}, {"begin", begin}, {"content", std::move(content)}, {"end", end}};
}

Json format_of(const GrammarSpec& spec) {
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonSchema:
      return {{"type", "json_schema"},
              {"json_schema", Json::parse(spec.text, nullptr, false)},
              {"lenient", spec.lenient}};
    case GrammarSpec::Kind::kRegex:
      return {{"type", "regex"}, {"pattern", spec.text}};
    case GrammarSpec::Kind::kEbnf:
      return {{"type", "grammar"}, {"grammar", spec.text}};
    case GrammarSpec::Kind::kChoice: {
      Json choices = Json::array();
      for (const std::string& text : spec.choices)
        choices.push_back({{"type", "const_string"}, {"value", text}});
      return {{"type", "or"}, {"elements", std::move(choices)}};
    }
    case GrammarSpec::Kind::kJsonObject:
    case GrammarSpec::Kind::kStructuralTag:
      break;
  }
  return {{"type", "json_schema"}, {"json_schema", {{"type", "object"}}}};
}

// What a property's schema says in the end: behind references, and in an allOf of one.
Json resolved(const Json& schema, Json property) {
  for (int i = 0; i < 8 && property.is_object(); ++i) {
    const Json all = property.value("allOf", Json());
    const Json reference = property.value("$ref", Json());
    if (all.is_array() && all.size() == 1) {
      property = Json(all[0]);
    } else if (reference.is_string() && reference.get_ref<const std::string&>().starts_with("#/")) {
      try {
        property = schema.at(Json::json_pointer(reference.get<std::string>().substr(1)));
      } catch (const Json::exception&) {
        return Json();
      }
    } else {
      break;
    }
  }
  return property;
}

std::string_view without_blanks(std::string_view text) {
  const size_t first = text.find_first_not_of(" \n\r\t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \n\r\t") + 1 - first);
}

// Appends what the property may be: each of its anyOf or oneOf, and of theirs.
void add_alternatives(const Json& schema, const Json& property, int depth, std::vector<Json>& out) {
  constexpr int kMaxDepth = 8;
  Json one = resolved(schema, property);
  for (const char* name : {"anyOf", "oneOf"}) {
    if (!one.is_object() || !one.contains(name) || depth == kMaxDepth) continue;
    for (const Json& other : one[name]) add_alternatives(schema, other, depth + 1, out);
    return;
  }
  out.push_back(std::move(one));
}

// What the parameter of this name may be; none: the schema does not say.
std::vector<Json> alternatives_of(const Json& schema, const std::string& name) {
  std::vector<Json> objects, found;
  add_alternatives(schema, schema, 0, objects);
  for (const Json& object : objects) {
    const Json properties = object.is_object() ? object.value("properties", Json()) : Json();
    if (properties.contains(name)) add_alternatives(schema, properties[name], 0, found);
  }
  for (const Json& object : objects) {
    if (!found.empty() || !object.is_object()) break;
    for (const Json& other : object.value("patternProperties", Json::object()))
      add_alternatives(schema, other, 0, found);
    const Json others = object.value("additionalProperties", Json());
    if (found.empty() && others.is_object()) add_alternatives(schema, others, 0, found);
  }
  return found;
}

// The one of the schema's enum or const that the text is; strings stand without quotes.
Json chosen(const Json& property, std::string_view text) {
  Json values = property.value("enum", Json::array());
  if (property.contains("const")) values = Json::array({property["const"]});
  const Json said = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  for (const Json& value : values) {
    const bool is_it = value.is_string() ? without_blanks(text) ==
                                               without_blanks(value.get_ref<const std::string&>())
                                         : said == value;  // 1000 is 1000.0
    if (is_it) return value;
  }
  return Json(Json::value_t::discarded);
}

bool has_type(const Json& property, const std::string& name) {
  const Json types = property.value("type", Json());
  return types == name ||
         (types.is_array() && std::find(types.begin(), types.end(), name) != types.end());
}

// Whether the value is of a type that the property has, other than a string. Whole numbers past 64
// bits are doubles here.
bool fits(const Json& property, const Json& value) {
  if (value.is_number()) {
    const double number = value.get<double>();
    return has_type(property, "number") ||
           (number == std::floor(number) && has_type(property, "integer"));
  }
  return (value.is_object() && has_type(property, "object")) ||
         (value.is_array() && has_type(property, "array")) ||
         (value.is_boolean() && has_type(property, "boolean")) ||
         (value.is_null() && has_type(property, "null"));
}

// A string as it is written, blanks and all: grammars let such around others.
bool is_free_string(const Json& property) {
  constexpr std::array kBounds = {"pattern", "format", "minLength", "maxLength"};
  return std::none_of(kBounds.begin(), kBounds.end(),
                      [&](const char* name) { return property.contains(name); });
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

}  // namespace

Result<ToolFormat> parse_tool_format(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, ToolFormat>, 6> kKnown = {
      {{"hermes", ToolFormat::kHermes},
       {"qwen3_coder", ToolFormat::kQwen3Coder},
       {"qwen3_xml", ToolFormat::kQwen3Coder},
       {"llama3_json", ToolFormat::kLlama3Json},
       {"llama4_json", ToolFormat::kLlama3Json},
       {"none", ToolFormat::kNone}}};
  return find_name(kKnown, name, "tool format");
}

Result<bool> parse_reasoning_format(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, bool>, 4> kKnown = {
      {{"qwen3", true}, {"deepseek_r1", true}, {"nemotron_v3", true}, {"none", false}}};
  return find_name(kKnown, name, "reasoning format");
}

bool template_has(std::string_view source, ToolFormat format) {
  const auto has = [&](std::string_view text) { return source.find(text) != source.npos; };
  switch (format) {
    case ToolFormat::kHermes:
      return has("<tool_call>") && !has("<function=");
    case ToolFormat::kQwen3Coder:
      return has("<function=");
    case ToolFormat::kLlama3Json:
      return has("\"parameters\": ") && has("ipython");
    case ToolFormat::kNone:
      break;
  }
  return true;
}

AnswerMarkup markup_of_template(std::string_view source) {
  AnswerMarkup markup{.think = source.find("</think>") != source.npos};
  for (const ToolFormat format :
       {ToolFormat::kQwen3Coder, ToolFormat::kHermes, ToolFormat::kLlama3Json}) {
    if (!template_has(source, format)) continue;
    markup.tools = format;
    break;
  }
  return markup;
}

std::optional<GrammarSpec> answer_grammar(const Chat& chat, ToolFormat format,
                                          const std::optional<GrammarSpec>& answer,
                                          bool any_schema) {
  using Kind = ToolChoice::Kind;
  const ToolChoice& choice = chat.options.tool_choice;
  if (!may_call(chat) || format == ToolFormat::kNone) return answer;
  const bool forced = choice.kind == Kind::kRequired || choice.kind == Kind::kNamed;
  // JSON without a tag around may be content too.
  if (format == ToolFormat::kLlama3Json && !forced && !answer) return std::nullopt;
  Json tags = Json::array();
  for (const FunctionTool& tool : chat.tools) {
    if (choice.kind == Kind::kNamed && tool.name != choice.name) continue;
    tags.push_back(call_tag(tool, format, any_schema));
  }
  const bool one = !chat.options.parallel_tool_calls || choice.kind == Kind::kNamed;
  Json form;
  if (forced || answer) {
    form = {{"type", "tags_with_separator"},
            {"tags", std::move(tags)},
            {"separator", format == ToolFormat::kLlama3Json ? "; " : "\n"},
            {"at_least_one", true},
            {"stop_after_first", one}};
    if (answer && !forced) {
      form = {{"type", "or"}, {"elements", Json::array({std::move(form), format_of(*answer)})}};
    }
  } else {
    form = {{"type", "triggered_tags"},
            {"triggers", Json::array({"<tool_call>"})},
            {"tags", std::move(tags)},
            {"at_least_one", false},
            {"stop_after_first", one}};
  }
  return GrammarSpec{.kind = GrammarSpec::Kind::kStructuralTag,
                     .text = Json{{"type", "structural_tag"}, {"format", std::move(form)}}.dump()};
}

size_t parameter_name_size(const FunctionTool* tool, std::string_view text) {
  size_t size = text.find('>');
  if (tool == nullptr || size == text.npos) return size;
  const Json schema = Json::parse(tool->parameters, nullptr, /*allow_exceptions=*/false);
  std::vector<Json> objects;
  if (schema.is_object()) add_alternatives(schema, schema, 0, objects);
  for (const Json& object : objects) {
    const Json properties = object.is_object() ? object.value("properties", Json()) : Json();
    if (!properties.is_object()) continue;
    for (const auto& property : properties.items()) {
      const std::string& name = property.key();
      if (name.size() > size && text.starts_with(name + ">")) size = name.size();
    }
  }
  return size;
}

std::string typed_parameter(const FunctionTool* tool, const std::string& name, std::string text) {
  const std::string_view word = without_blanks(text);
  std::vector<Json> alternatives;
  if (tool != nullptr) {
    const Json schema = Json::parse(tool->parameters, nullptr, /*allow_exceptions=*/false);
    if (schema.is_object()) alternatives = alternatives_of(schema, name);
  }
  std::erase_if(alternatives, [](const Json& one) { return !one.is_object(); });
  for (const Json& one : alternatives) {
    if (const Json value = chosen(one, text); !value.is_discarded()) return value.dump();
  }
  std::string small = lower(word);
  const bool is_name = small == "true" || small == "false" || small == "null";
  const Json value = Json::parse(is_name ? small : word, nullptr, /*allow_exceptions=*/false);
  bool may_be_string = alternatives.empty(), is_free = alternatives.empty(), is_typed = false;
  for (const Json& one : alternatives) {
    if (!value.is_discarded() && fits(one, value)) return is_name ? small : std::string(word);
    is_typed |= one.contains("type");
    if (one.contains("type") && !has_type(one, "string")) continue;
    may_be_string = true;
    is_free |= is_free_string(one);
  }
  if (small == "null" && !(is_typed && may_be_string)) return "null";
  const Json as_string = is_free ? std::move(text) : std::string(word);
  return as_string.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace nibble
