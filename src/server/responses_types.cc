#include "server/responses_types.h"

#include <algorithm>

#include "server/openai_chat_types.h"
#include "server/openai_format.h"

namespace nibble::server {
namespace {

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr int32_t kMaxTop = 20;

// A string, or parts with a text; what has none (images, refusals) is refused.
std::string read_parts(JsonFields& item, const char* name) {
  const Json* content = item.find(name);
  if (!content) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    item.fail(name, "has to be a string or an array of parts");
    return {};
  }
  std::string text;
  for (const Json& part : *content) {
    const bool has_text = part.is_object() && part.contains("text") && part["text"].is_string();
    if (!has_text) {
      item.fail(name, not_text(part));
      return {};
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

// What the items say, as messages. Items of one turn of the assistant become one message.
class ItemReader {
 public:
  explicit ItemReader(std::vector<ChatMessage>& messages) : messages_(messages) {}
  void read(JsonFields& item);

 private:
  ChatMessage& assistant(bool starts_anew) {
    const bool open = !messages_.empty() && messages_.back().role == Role::kAssistant;
    if (!open || starts_anew) messages_.push_back({.role = Role::kAssistant});
    return messages_.back();
  }
  bool has_more_than_reasoning() const {
    return !messages_.empty() && messages_.back().role == Role::kAssistant &&
           (!messages_.back().content.empty() || !messages_.back().tool_calls.empty());
  }
  bool has_calls() const { return !messages_.empty() && !messages_.back().tool_calls.empty(); }
  void read_message(JsonFields& item);
  void read_call(JsonFields& item, const std::string& type);

  std::vector<ChatMessage>& messages_;
};

void ItemReader::read_message(JsonFields& item) {
  const auto role = parse_role(item.string("role"));
  if (!role || *role == Role::kTool) {
    return item.fail("role", "has to be user, assistant, system or developer");
  }
  std::string text = read_parts(item, "content");
  if (*role != Role::kAssistant) {
    return messages_.push_back({.role = *role, .content = std::move(text)});
  }
  ChatMessage& message = assistant(has_calls());
  if (!message.content.empty()) message.content += "\n";
  message.content += text;
}

// function_call, and the calls of tools that are not functions: local_shell_call, custom_tool_call.
void ItemReader::read_call(JsonFields& item, const std::string& type) {
  ToolCall call{.id = item.string("call_id"), .name = item.string("name", type)};
  if (call.id.empty()) call.id = item.string("id");
  if (type == "function_call") {
    call.name = read_name(item, "name");
    call.arguments = item.string("arguments", "{}");
  } else {
    const Json* input = item.has("action") ? item.find("action") : item.find("input");
    call.arguments = input ? to_text(*input) : "{}";
  }
  assistant(false).tool_calls.push_back(std::move(call));
}

void ItemReader::read(JsonFields& item) {
  const std::string type = item.string("type", "message");
  if (type == "message") {
    read_message(item);
  } else if (type == "reasoning") {
    ChatMessage& message = assistant(has_more_than_reasoning());
    std::string text = read_parts(item, "content");
    if (text.empty()) text = read_parts(item, "summary");
    if (!message.reasoning.empty()) message.reasoning += "\n";
    message.reasoning += text;
  } else if (type.ends_with("_call_output")) {
    messages_.push_back({.role = Role::kTool,
                         .content = read_parts(item, "output"),
                         .tool_call_id = item.string("call_id", item.string("id"))});
  } else if (type == "web_search_call" || type == "image_generation_call" ||
             type == "code_interpreter_call" || type == "file_search_call") {
    // Run by OpenAI's servers; what came of it is in the messages.
  } else if (type.ends_with("_call")) {
    read_call(item, type);
  } else {
    item.fail("type", "is not known");
  }
}

void read_input(JsonFields& fields, Chat& chat) {
  const std::string instructions = fields.string("instructions");
  if (!instructions.empty()) {
    chat.messages.push_back({.role = Role::kDeveloper, .content = instructions});
  }
  const Json* input = fields.find("input");
  if (!input) return fields.fail("input", "is missing");
  if (input->is_string()) {
    return chat.messages.push_back({.role = Role::kUser, .content = input->get<std::string>()});
  }
  if (!input->is_array() || input->empty()) {
    return fields.fail("input", "has to be a string or an array of items");
  }
  ItemReader reader(chat.messages);
  for (size_t i = 0; i < input->size() && !fields.failed(); ++i) {
    JsonFields item((*input)[i], "input[" + std::to_string(i) + "]", fields.error());
    reader.read(item);
  }
}

// Tools that are not functions (web_search, local_shell, custom) are left out: nobody here runs
// them, and the model is not told of them.
void read_tools(JsonFields& fields, Chat& chat) {
  const Json* tools = fields.array("tools");
  for (size_t i = 0; tools && i < tools->size() && !fields.failed(); ++i) {
    JsonFields tool((*tools)[i], "tools[" + std::to_string(i) + "]", fields.error());
    if (tool.string("type") != "function") continue;
    FunctionTool function{.name = read_name(tool, "name"),
                          .description = tool.string("description")};
    if (const Json* schema = tool.object("parameters")) function.parameters = to_text(*schema);
    function.strict = tool.boolean("strict", false);
    chat.tools.push_back(std::move(function));
  }
}

void read_tool_choice(JsonFields& fields, Chat& chat) {
  const Json* choice = fields.find("tool_choice");
  if (!choice || *choice == "auto") return;
  ToolChoice& result = chat.options.tool_choice;
  if (*choice == "none") {
    result.kind = ToolChoice::Kind::kNone;
  } else if (*choice == "required") {
    if (chat.tools.empty()) return fields.fail("tool_choice", "\"required\" needs tools");
    result.kind = ToolChoice::Kind::kRequired;
  } else if (choice->is_object()) {
    JsonFields named(*choice, "tool_choice", fields.error());
    if (named.string("type") == "allowed_tools") return read_allowed_tools(named, chat);
    if (named.string("type") != "function") {
      return named.fail("type", "has to be \"function\"");
    }
    result = {.kind = ToolChoice::Kind::kNamed, .name = named.string("name")};
    const bool known = std::any_of(chat.tools.begin(), chat.tools.end(),
                                   [&](const FunctionTool& t) { return t.name == result.name; });
    if (!known) named.fail("name", "is that of no function in tools");
  } else {
    fields.fail("tool_choice", "has to be \"auto\", \"none\", \"required\" or a function");
  }
}

void read_reasoning_and_text(JsonFields& fields, ResponsesRequest& request) {
  if (const Json* object = fields.object("reasoning")) {
    JsonFields reasoning(*object, "reasoning", fields.error());
    if (reasoning.has("effort")) {
      const auto effort = parse_reasoning_effort(reasoning.string("effort"));
      if (!effort) return reasoning.fail("effort", "is wrong: " + effort.error());
      request.chat.options.effort = *effort;
    }
  }
  const Json* object = fields.object("text");
  if (!object) return;
  JsonFields text(*object, "text", fields.error());
  read_verbosity(text, request.chat);
  const Json* inner = text.object("format");
  if (!inner) return;
  JsonFields format(*inner, "text.format", fields.error());
  const std::string type = format.string("type");
  if (type == "json_schema") {
    read_json_schema(format, request);
    request.chat.options.response_format = described(format);
  } else if (type == "json_object") {
    request.format = GrammarSpec{.kind = GrammarSpec::Kind::kJsonObject};
    request.format_field = "text.format";
  } else if (type != "text") {
    format.fail("type", "has to be \"text\", \"json_object\" or \"json_schema\"");
  }
}

// Asked for by either field; a number of tops is asked for by one.
void read_logprobs(JsonFields& fields, SamplingParams& sampling) {
  if (fields.has("top_logprobs")) {
    sampling.logprobs = static_cast<int32_t>(fields.integer("top_logprobs", 0, 0, kMaxTop));
  } else if (const Json* include = fields.array("include")) {
    const bool wanted = std::find(include->begin(), include->end(),
                                  "message.output_text.logprobs") != include->end();
    if (wanted) sampling.logprobs = 0;
  }
}

void read_echo(JsonFields& fields, ResponsesRequest& request) {
  const auto echo = [&](const char* name, const Json& otherwise) {
    const Json* value = fields.find(name);
    request.echo[name] = value ? *value : otherwise;
  };
  echo("instructions", nullptr);
  echo("max_output_tokens", nullptr);
  echo("metadata", Json::object());
  echo("parallel_tool_calls", true);
  echo("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  echo("text", {{"format", {{"type", "text"}}}});
  echo("tool_choice", "auto");
  echo("tools", Json::array());
  echo("top_logprobs", 0);
  echo("user", nullptr);
  request.echo["store"] = false;
  request.echo["temperature"] = request.sampling.temperature;
  request.echo["top_p"] = request.sampling.top_p;
  echo("truncation", "disabled");
  request.echo["previous_response_id"] = nullptr;
}

}  // namespace

std::optional<ApiError> parse_responses_request(std::string_view body,
                                                const SamplingParams& defaults,
                                                ResponsesRequest& request) {
  return read_body(body, [&](JsonFields& fields) {
    request.model = fields.string("model");
    request.sampling = defaults;
    SamplingParams& sampling = request.sampling;
    sampling.temperature =
        static_cast<float>(fields.number("temperature", sampling.temperature, 0, 100));
    sampling.top_p = static_cast<float>(fields.number("top_p", sampling.top_p, 1e-6, 1));
    if (fields.has("max_output_tokens")) {
      request.max_tokens = fields.integer("max_output_tokens", 1, 1, kMaxTokens);
    }
    read_logprobs(fields, sampling);
    request.stream = fields.boolean("stream", false);
    read_scheduling(fields, request);
    request.parallel_tool_calls = fields.boolean("parallel_tool_calls", true);
    for (const char* stored : {"previous_response_id", "conversation", "prompt"}) {
      if (fields.has(stored))
        fields.fail(stored, "is not supported: nothing is stored; send all items");
    }
    if (fields.boolean("background", false)) fields.fail("background", "is not supported");
    const std::string truncation = fields.string("truncation", "disabled");
    if (truncation != "disabled" && truncation != "auto") {
      fields.fail("truncation", "has to be \"disabled\" or \"auto\"");
    }
    read_input(fields, request.chat);
    read_tools(fields, request.chat);
    read_tool_choice(fields, request.chat);
    read_reasoning_and_text(fields, request);
    read_echo(fields, request);
  });
}

}  // namespace nibble::server
