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
      fields.fail("content", not_text(part));
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

// The old form of a call, which has no id: its function's name serves as one.
void read_function_call(JsonFields& message, std::vector<ToolCall>& calls) {
  const Json* call = message.object("function_call");
  if (!call) return;
  JsonFields fields(*call, message.path_of("function_call"), message.error());
  const std::string name = read_name(fields, "name");
  calls.push_back({.id = name, .name = name, .arguments = read_arguments(fields)});
}

ChatMessage read_message(const Json& json, const std::string& path,
                         std::optional<ApiError>& error) {
  JsonFields fields(json, path, error);
  ChatMessage message;
  if (fields.string("role") == "function") {
    return {.role = Role::kTool,
            .content = read_content(fields),
            .tool_call_id = read_name(fields, "name")};
  }
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
    read_function_call(fields, message.tool_calls);
  } else if (!fields.has("content")) {
    fields.fail("content", "is missing");
  }
  if (message.role == Role::kUser && !fields.string("name").empty()) {
    message.name = read_name(fields, "name");
  }
  if (message.role == Role::kTool) message.tool_call_id = fields.string("tool_call_id");
  return message;
}

FunctionTool read_function(const Json& json, const std::string& path,
                           std::optional<ApiError>& error) {
  JsonFields fields(json, path, error);
  FunctionTool tool{.name = read_name(fields, "name"), .description = fields.string("description")};
  if (const Json* parameters = fields.object("parameters")) tool.parameters = to_text(*parameters);
  tool.strict = fields.boolean("strict", false);
  return tool;
}

FunctionTool read_tool(const Json& json, const std::string& path, std::optional<ApiError>& error) {
  JsonFields fields(json, path, error);
  if (fields.string("type") != "function") {
    fields.fail("type", "has to be \"function\": nibble runs no tools of its own");
  }
  if (const Json* function = fields.object("function")) {
    return read_function(*function, path + ".function", error);
  }
  fields.fail("function", "is missing");
  return {};
}

void read_tools(JsonFields& fields, Chat& chat) {
  std::optional<ApiError>& error = fields.error();
  const Json* tools = fields.array("tools");
  for (size_t i = 0; tools && i < tools->size() && !error; ++i) {
    chat.tools.push_back(read_tool((*tools)[i], element("tools", i), error));
  }
  const Json* functions = fields.array("functions");
  if (functions && !functions->empty() && !chat.tools.empty()) {
    fields.fail("functions", "is the old form of tools, which are there too");
  }
  for (size_t i = 0; functions && i < functions->size() && !error; ++i) {
    chat.tools.push_back(read_function((*functions)[i], element("functions", i), error));
  }
}

bool has_tool(const Chat& chat, std::string_view name) {
  return std::any_of(chat.tools.begin(), chat.tools.end(),
                     [&](const FunctionTool& tool) { return tool.name == name; });
}

// {"name"}, as function_call and tool_choice's "function" have it.
void read_choice_by_name(const Json& json, const std::string& path, std::optional<ApiError>& error,
                         Chat& chat) {
  JsonFields fields(json, path, error);
  chat.options.tool_choice = {.kind = ToolChoice::Kind::kNamed, .name = read_name(fields, "name")};
  if (!has_tool(chat, chat.options.tool_choice.name)) {
    fields.fail("name", "is that of no function that was given");
  }
}

void read_tool_choice(JsonFields& fields, Chat& chat) {
  const char* name = fields.has("tool_choice") ? "tool_choice" : "function_call";
  const Json* choice = fields.find(name);
  if (!choice || *choice == "auto") return;
  if (*choice == "none") {
    chat.options.tool_choice.kind = ToolChoice::Kind::kNone;
  } else if (*choice == "required") {
    if (chat.tools.empty()) return fields.fail(name, "\"required\" needs tools");
    chat.options.tool_choice.kind = ToolChoice::Kind::kRequired;
  } else if (!choice->is_object()) {
    fields.fail(name, R"(has to be "auto", "none", "required" or a function by name)");
  } else if (std::string_view(name) == "function_call") {
    read_choice_by_name(*choice, name, fields.error(), chat);
  } else {
    JsonFields inner(*choice, name, fields.error());
    if (const Json* allowed = inner.object("allowed_tools")) {
      JsonFields list(*allowed, inner.path_of("allowed_tools"), fields.error());
      read_allowed_tools(list, chat);
    } else if (const Json* function = inner.object("function")) {
      read_choice_by_name(*function, inner.path_of("function"), fields.error(), chat);
    } else {
      inner.fail("function", "is missing");
    }
  }
}

void read_template_arguments(JsonFields& arguments, const Json& json, Chat& chat) {
  chat.options.model_identity = arguments.string("model_identity", chat.options.model_identity);
  Json more = Json::object();
  for (const auto& [key, value] : json.items()) {
    if (key != "reasoning_effort" && key != "model_identity") more[key] = value;
  }
  if (!more.empty()) chat.options.template_variables = to_text(more);
}

void read_effort(JsonFields& fields, const char* name, Chat& chat) {
  if (!fields.has(name)) return;
  const auto effort = parse_reasoning_effort(fields.string(name));
  if (!effort) return fields.fail(name, "is wrong: " + effort.error());
  chat.options.effort = *effort;
}

}  // namespace

std::string not_text(const Json& part) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  const bool is_named = part.is_object() && type != part.end() && type->is_string();
  return "has a part " + (is_named ? "of type " + type->get<std::string>() : "that is not text") +
         "; nibble takes text only";
}

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
    read_template_arguments(inner, *arguments, chat);
  }
  read_verbosity(fields, chat);
  chat.options.continue_final_message = fields.boolean("continue_final_message", false);
  if (chat.options.continue_final_message &&
      (chat.messages.empty() || chat.messages.back().role != Role::kAssistant)) {
    fields.fail("continue_final_message", "needs a last message of the assistant");
  }
  if (!fields.boolean("add_generation_prompt", true) && !chat.options.continue_final_message) {
    fields.fail("add_generation_prompt", "can be false with continue_final_message only");
  }
}

void read_allowed_tools(JsonFields& allowed, Chat& chat) {
  std::vector<std::string> names;
  const Json* tools = allowed.array("tools");
  if (!tools || tools->empty()) return allowed.fail("tools", "has to list at least one tool");
  for (size_t i = 0; i < tools->size() && !allowed.failed(); ++i) {
    JsonFields tool((*tools)[i], allowed.path_of(element("tools", i).c_str()), allowed.error());
    if (tool.string("type", "function") != "function") continue;  // nobody here runs it
    const Json* function = tool.object("function");
    JsonFields inner(function ? *function : (*tools)[i], tool.path_of(function ? "function" : ""),
                     allowed.error());
    names.push_back(read_name(inner, "name"));
    if (!has_tool(chat, names.back())) inner.fail("name", "is that of no function in tools");
  }
  std::erase_if(chat.tools, [&](const FunctionTool& tool) {
    return std::find(names.begin(), names.end(), tool.name) == names.end();
  });
  const std::string mode = allowed.string("mode", "auto");
  if (mode == "required") {
    if (chat.tools.empty()) return allowed.fail("tools", "has no function, and one is required");
    chat.options.tool_choice.kind = ToolChoice::Kind::kRequired;
  } else if (mode != "auto") {
    allowed.fail("mode", "has to be \"auto\" or \"required\"");
  }
}

void read_verbosity(JsonFields& fields, Chat& chat) {
  const std::string wish = fields.string("verbosity", "medium");
  if (wish != "low" && wish != "medium" && wish != "high") {
    return fields.fail("verbosity", "has to be \"low\", \"medium\" or \"high\"");
  }
  chat.options.verbosity = wish == "low"    ? Verbosity::kLow
                           : wish == "high" ? Verbosity::kHigh
                                            : Verbosity::kMedium;
}

}  // namespace nibble::server
