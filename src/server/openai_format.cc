#include "server/openai_format.h"

namespace nibble::server {
namespace {

using Kind = GrammarSpec::Kind;

constexpr size_t kMaxChoiceBytes = 128 << 10;  // of all choices, as of a schema

void set_format(JsonFields& fields, const char* field, GrammarSpec spec,
                GenerationRequest& request) {
  if (fields.failed()) return;
  if (request.format) {
    return fields.fail(field,
                       "is a second form for the same answer, beside " + request.format_field);
  }
  const auto size = GrammarCompiler::check_size(spec);
  if (!size) return fields.fail(field, size.error());
  request.format = std::move(spec);
  request.format_field = fields.path_of(field);
}

// A schema as an object or a boolean, or (some clients) as text.
GrammarSpec schema_spec(JsonFields& fields, const char* field) {
  const Json& schema = *fields.find(field);
  if (schema.is_object() || schema.is_boolean()) {
    return {.kind = Kind::kJsonSchema, .text = to_text(schema)};
  }
  return {.kind = Kind::kJsonSchema, .text = fields.string(field)};
}

GrammarSpec choice_spec(JsonFields& fields, const char* field) {
  GrammarSpec spec{.kind = Kind::kChoice};
  const Json* choices = fields.array(field);
  if (!choices) return spec;
  if (choices->empty()) fields.fail(field, "has to have at least one string");
  size_t bytes = 0;
  for (const Json& choice : *choices) {
    if (!choice.is_string() || choice.get_ref<const std::string&>().empty()) {
      fields.fail(field, "has to be an array of strings that are not empty");
      break;
    }
    bytes += choice.get_ref<const std::string&>().size();
    if (bytes > kMaxChoiceBytes) {
      fields.fail(field, "has more than 131072 bytes in all");
      break;
    }
    spec.choices.push_back(choice.get<std::string>());
  }
  return spec;
}

struct Names {
  const char *json, *regex, *choice, *grammar;
};

void read_one_of(JsonFields& fields, const Names& names, GenerationRequest& request) {
  if (fields.has(names.json)) {
    set_format(fields, names.json, schema_spec(fields, names.json), request);
  }
  if (fields.has(names.regex)) {
    set_format(fields, names.regex, {.kind = Kind::kRegex, .text = fields.string(names.regex)},
               request);
  }
  if (fields.has(names.choice)) {
    set_format(fields, names.choice, choice_spec(fields, names.choice), request);
  }
  if (fields.has(names.grammar)) {
    set_format(fields, names.grammar, {.kind = Kind::kEbnf, .text = fields.string(names.grammar)},
               request);
  }
}

}  // namespace

void read_json_schema(JsonFields& format, GenerationRequest& request) {
  if (!format.has("schema")) return format.fail("schema", "is missing");
  GrammarSpec spec = schema_spec(format, "schema");
  spec.lenient = !format.boolean("strict", true);
  set_format(format, "schema", std::move(spec), request);
}

void read_format(JsonFields& fields, GenerationRequest& request) {
  if (const Json* object = fields.object("response_format")) {
    JsonFields format(*object, "response_format", fields.error());
    const std::string type = format.string("type");
    if (type == "json_object") {
      set_format(fields, "response_format", {.kind = Kind::kJsonObject}, request);
    } else if (type == "json_schema") {
      const Json* inner = format.object("json_schema");
      if (!inner) return format.fail("json_schema", "is missing");
      JsonFields schema(*inner, "response_format.json_schema", fields.error());
      read_json_schema(schema, request);
    } else if (type != "text") {
      format.fail("type", "has to be \"text\", \"json_object\" or \"json_schema\"");
    }
  }
  constexpr Names kGuided{"guided_json", "guided_regex", "guided_choice", "guided_grammar"};
  read_one_of(fields, kGuided, request);
  if (const Json* outputs = fields.object("structured_outputs")) {
    JsonFields inner(*outputs, "structured_outputs", fields.error());
    constexpr Names kPlain{"json", "regex", "choice", "grammar"};
    read_one_of(inner, kPlain, request);
    if (inner.boolean("json_object", false)) {
      set_format(inner, "json_object", {.kind = Kind::kJsonObject}, request);
    }
    if (inner.has("structural_tag")) inner.fail("structural_tag", "is not supported");
  }
}

ResponseFormat described(JsonFields& format) {
  const Json* schema = format.find("schema");
  return {.name = format.string("name", "answer"),
          .description = format.string("description"),
          .schema = schema && schema->is_object() ? to_text(*schema) : "{}"};
}

void describe_format(JsonFields& fields, ChatRequest& request) {
  const Json* object = fields.object("response_format");
  if (fields.failed() || !object || !object->contains("json_schema")) return;
  JsonFields format((*object)["json_schema"], "response_format.json_schema", fields.error());
  request.chat.options.response_format = described(format);
}

}  // namespace nibble::server
