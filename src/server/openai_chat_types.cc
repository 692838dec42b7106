#include "server/openai_chat_types.h"

#include <algorithm>
#include <cctype>

namespace nibble::server {
namespace {

constexpr size_t kMaxNameBytes = 128;

std::string element(const char* name, size_t i) {
  return std::string(name) + "[" + std::to_string(i) + "]";
}

// Names become part of a message's header: nothing that could be read as markup.
bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '_' || c == '-' || c == '.';
         });
}

// A string, or an array of {"type":"text","text"} parts, which are joined.
std::string read_content(JsonFields& fields) {
  const Json* content = fields.find("content");
  if (!content) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    fields.fail("content", "has to be a string or an array of parts");
    return {};
  }
  std::string text;
  for (const Json& part : *content) {
    if (part.is_string()) {
      text += part.get<std::string>();
      continue;
    }
    const bool is_text =
        part.is_object() && part.contains("type") && part.contains("text") &&
        part["text"].is_string() &&
        (part["type"] == "text" || part["type"] == "input_text" || part["type"] == "output_text");
    if (!is_text) {
      fields.fail("content", "has a part that is not text: this model takes text only");
      return {};
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

// OpenAI has a string of JSON; some clients send the object itself.
std::string read_arguments(JsonFields& fields) {
  const Json* arguments = fields.find("arguments");
  if (!arguments) return "{}";
  return arguments->is_object() ? to_text(*arguments) : fields.string("arguments");
}

std::vector<ToolCall> read_tool_calls(JsonFields& message) {
  std::optional<ApiError>& error = message.error();
  std::vector<ToolCall> calls;
  const Json* list = message.array("tool_calls");
  for (size_t i = 0; list && i < list->size() && !error; ++i) {
    const std::string path = message.path_of(element("tool_calls", i).c_str());
    JsonFields fields((*list)[i], path, error);
    if (fields.string("type", "function") != "function") {
      fields.fail("type", "has to be \"function\"");
    }
    const Json* function = fields.object("function");
    if (!function) {
      fields.fail("function", "is missing");
      break;
    }
    JsonFields inner(*function, path + ".function", error);
    calls.push_back({.id = fields.string("id"),
                     .name = read_name(inner, "name"),
                     .arguments = read_arguments(inner)});
  }
  return calls;
}

ChatMessage read_message(const Json& json, const std::string& path,
                         std::optional<ApiError>& error) {
  JsonFields fields(json, path, error);
  ChatMessage message;
  const auto role = parse_role(fields.string("role"));
  if (!role) {
    fields.fail("role", "is wrong: " + role.error());
    return message;
  }
  message.role = *role;
  message.content = read_content(fields);
  if (message.role == Role::kAssistant) {
    message.reasoning = fields.string("reasoning");
    if (message.reasoning.empty()) message.reasoning = fields.string("reasoning_content");
    if (message.content.empty()) message.content = fields.string("refusal");
    message.tool_calls = read_tool_calls(fields);
    if (fields.has("function_call")) fields.fail("function_call", "is the old form: tool_calls");
  } else if (!fields.has("content")) {
    fields.fail("content", "is missing");
  }
  if (message.role == Role::kUser && !fields.string("name").empty()) {
    message.name = read_name(fields, "name");
  }
  if (message.role == Role::kTool) message.tool_call_id = fields.string("tool_call_id");
  return message;
}

FunctionTool read_tool(const Json& json, const std::string& path, std::optional<ApiError>& error) {
  JsonFields fields(json, path, error);
  FunctionTool tool;
  if (fields.string("type") != "function") {
    fields.fail("type", "has to be \"function\": nibble runs no tools of its own");
  }
  const Json* function = fields.object("function");
  if (!function) {
    fields.fail("function", "is missing");
    return tool;
  }
  JsonFields inner(*function, path + ".function", error);
  tool.name = read_name(inner, "name");
  tool.description = inner.string("description");
  if (const Json* parameters = inner.object("parameters")) tool.parameters = to_text(*parameters);
  tool.strict = inner.boolean("strict", false);
  return tool;
}

void read_tools(JsonFields& fields, Chat& chat) {
  std::optional<ApiError>& error = fields.error();
  const Json* tools = fields.array("tools");
  for (size_t i = 0; tools && i < tools->size() && !error; ++i) {
    chat.tools.push_back(read_tool((*tools)[i], element("tools", i), error));
  }
}

void read_tool_choice(JsonFields& fields, Chat& chat) {
  const Json* choice = fields.find("tool_choice");
  if (!choice) return;
  ToolChoice& result = chat.options.tool_choice;
  if (*choice == "auto") return;
  if (*choice == "none") {
    result.kind = ToolChoice::Kind::kNone;
    return;
  }
  if (*choice == "required") {
    if (chat.tools.empty()) return fields.fail("tool_choice", "\"required\" needs tools");
    result.kind = ToolChoice::Kind::kRequired;
    return;
  }
  const auto function = choice->is_object() ? choice->find("function") : choice->end();
  if (!choice->is_object() || function == choice->end() || !function->is_object() ||
      !function->contains("name") || !(*function)["name"].is_string()) {
    return fields.fail(
        "tool_choice",
        R"(has to be "auto", "none", "required" or {"type":"function","function":{"name":...}})");
  }
  result = {.kind = ToolChoice::Kind::kNamed, .name = (*function)["name"].get<std::string>()};
  const bool known = std::any_of(chat.tools.begin(), chat.tools.end(),
                                 [&](const FunctionTool& t) { return t.name == result.name; });
  if (!known) fields.fail("tool_choice", "names a function that is not in tools");
}

void read_effort(JsonFields& fields, const char* name, Chat& chat) {
  if (!fields.has(name)) return;
  const auto effort = parse_reasoning_effort(fields.string(name));
  if (!effort) return fields.fail(name, "is wrong: " + effort.error());
  chat.options.effort = *effort;
}

}  // namespace

std::string read_name(JsonFields& fields, const char* field) {
  std::string name = fields.string(field);
  if (!is_name(name)) fields.fail(field, "has to be 1 to 128 letters, digits, _, - or .");
  return name;
}

void read_chat(JsonFields& fields, Chat& chat, bool& include_reasoning) {
  std::optional<ApiError>& error = fields.error();
  const Json* messages = fields.array("messages");
  if (!messages || messages->empty()) fields.fail("messages", "has to have at least one message");
  for (size_t i = 0; messages && i < messages->size() && !error; ++i) {
    chat.messages.push_back(read_message((*messages)[i], element("messages", i), error));
  }
  read_tools(fields, chat);
  read_tool_choice(fields, chat);
  read_effort(fields, "reasoning_effort", chat);
  include_reasoning = fields.boolean("include_reasoning", true);
  if (const Json* reasoning = fields.object("reasoning")) {
    JsonFields inner(*reasoning, "reasoning", error);
    read_effort(inner, "effort", chat);
    if (inner.boolean("exclude", false)) include_reasoning = false;
  }
  if (const Json* arguments = fields.object("chat_template_kwargs")) {
    JsonFields inner(*arguments, "chat_template_kwargs", error);
    read_effort(inner, "reasoning_effort", chat);
    chat.options.model_identity = inner.string("model_identity", chat.options.model_identity);
    for (const auto& [key, value] : arguments->items()) {
      if (key != "reasoning_effort" && key != "model_identity") {
        inner.fail(key.c_str(), "is not known: reasoning_effort and model_identity are");
      }
    }
  }
  chat.options.continue_final_message = fields.boolean("continue_final_message", false);
  if (chat.options.continue_final_message &&
      (chat.messages.empty() || chat.messages.back().role != Role::kAssistant)) {
    fields.fail("continue_final_message", "needs a last message of the assistant");
  }
}

}  // namespace nibble::server
