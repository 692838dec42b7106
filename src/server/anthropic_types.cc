#include "server/anthropic_types.h"

#include <algorithm>

#include "server/anthropic_blocks.h"
#include "server/json_fields.h"
#include "server/openai_chat_types.h"
#include "server/openai_format.h"

namespace nibble::server {
namespace {

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxStops = 64;
// Claude Code's first system block counts its requests: kept, it would change every prompt from its
// first tokens on, and no prefix would ever be found in the cache.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

std::string read_text(JsonFields& fields, const char* name, ToolOffer& tools) {
  std::string text;
  for_each_block(fields, name, [&](JsonFields& block, const std::string& type) {
    if (type != "text") return add_line(text, read_other_block(block, type, tools));
    const std::string piece = block.string("text");
    if (!piece.starts_with(kBillingHeader)) add_line(text, piece);
  });
  return text;
}

void read_assistant(JsonFields& fields, ToolOffer& tools, std::vector<ChatMessage>& messages) {
  ChatMessage message{.role = Role::kAssistant};
  for_each_block(fields, "content", [&](JsonFields& block, const std::string& type) {
    if (type == "text") {
      add_line(message.content, block.string("text"));
    } else if (type == "thinking") {
      add_line(message.reasoning, block.string("thinking"));
    } else if (type == "tool_use") {
      const Json* input = block.object("input");
      message.tool_calls.push_back({.id = block.string("id"),
                                    .name = read_name(block, "name"),
                                    .arguments = input ? to_text(*input) : "{}"});
    } else if (type != "redacted_thinking") {
      add_line(message.content, read_other_block(block, type, tools));
    }
  });
  messages.push_back(std::move(message));
}

// Answers of tools are messages of their own.
void read_user(JsonFields& fields, const MessagesRules& rules, ToolOffer& tools,
               std::vector<ChatMessage>& messages) {
  ChatMessage text{.role = Role::kUser};
  const auto flush = [&] {
    if (!text.content.empty()) messages.push_back(std::exchange(text, {.role = Role::kUser}));
  };
  const size_t before = messages.size();
  for_each_block(fields, "content", [&](JsonFields& block, const std::string& type) {
    if (type == "text") {
      add_line(text.content, block.string("text"));
    } else if (type == "tool_result") {
      flush();
      messages.push_back({.role = Role::kTool,
                          .content = read_text(block, "content", tools),
                          .tool_call_id = block.string("tool_use_id")});
    } else if (type == "image" && rules.refuses_images) {
      block.fail("type", "is image: nibble runs the text part of this model, which sees none");
    } else {
      add_line(text.content, read_other_block(block, type, tools));
    }
  });
  if (messages.size() == before) return messages.push_back(std::move(text));
  flush();
}

void read_messages(JsonFields& fields, const MessagesRules& rules, ToolOffer& tools, Chat& chat) {
  const std::string system = read_text(fields, "system", tools);
  if (!system.empty()) chat.messages.push_back({.role = Role::kSystem, .content = system});
  const Json* list = fields.array("messages");
  if (!list || list->empty()) return fields.fail("messages", "has to have at least one message");
  for (size_t i = 0; i < list->size() && !fields.failed(); ++i) {
    JsonFields message((*list)[i], "messages[" + std::to_string(i) + "]", fields.error());
    const std::string role = message.string("role");
    if (!message.has("content")) message.fail("content", "is missing");
    if (role == "user") {
      read_user(message, rules, tools, chat.messages);
    } else if (role == "assistant") {
      read_assistant(message, tools, chat.messages);
    } else if (role == "system") {
      chat.messages.push_back(
          {.role = Role::kSystem, .content = read_text(message, "content", tools)});
    } else {
      message.fail("role", "has to be \"user\" or \"assistant\"");
    }
  }
  // A last message of the assistant is the start of the answer.
  const ChatMessage* last = chat.messages.empty() ? nullptr : &chat.messages.back();
  chat.options.continue_final_message =
      last && last->role == Role::kAssistant && last->tool_calls.empty();
}

void read_tools(JsonFields& fields, ToolOffer& offer) {
  const Json* tools = fields.array("tools");
  for (size_t i = 0; tools && i < tools->size() && !fields.failed(); ++i) {
    JsonFields tool((*tools)[i], "tools[" + std::to_string(i) + "]", fields.error());
    offer.declare(tool);
  }
}

void read_tool_choice(JsonFields& fields, ChatRequest& request) {
  const Json* object = fields.object("tool_choice");
  if (!object) return;
  JsonFields choice(*object, "tool_choice", fields.error());
  const std::string type = choice.string("type");
  request.parallel_tool_calls = !choice.boolean("disable_parallel_tool_use", false);
  ToolChoice& result = request.chat.options.tool_choice;
  if (type == "none") {
    result.kind = ToolChoice::Kind::kNone;
  } else if (type == "any") {
    if (request.chat.tools.empty()) return choice.fail("type", "\"any\" needs tools");
    result.kind = ToolChoice::Kind::kRequired;
  } else if (type == "tool") {
    result = {.kind = ToolChoice::Kind::kNamed, .name = choice.string("name")};
    const auto& tools = request.chat.tools;
    const bool known = std::any_of(tools.begin(), tools.end(),
                                   [&](const FunctionTool& t) { return t.name == result.name; });
    if (!known) choice.fail("name", "is that of no tool");
  } else if (type != "auto") {
    choice.fail("type", "has to be \"auto\", \"any\", \"tool\" or \"none\"");
  }
}

// Thoughts are shown where thinking is asked for. gpt-oss always thinks: "disabled" makes it short.
void read_thinking(JsonFields& fields, ChatRequest& request) {
  request.include_reasoning = false;
  if (const Json* object = fields.object("thinking")) {
    JsonFields thinking(*object, "thinking", fields.error());
    const std::string type = thinking.string("type");
    if (type == "disabled") {
      request.chat.options.effort = ReasoningEffort::kLow;
    } else if (type == "enabled" || type == "adaptive") {
      request.include_reasoning = true;
    } else {
      thinking.fail("type", "has to be \"enabled\", \"adaptive\" or \"disabled\"");
    }
  }
}

void read_answer_format(JsonFields& format, ChatRequest& request) {
  if (format.string("type") != "json_schema") {
    return format.fail("type", "has to be \"json_schema\"");
  }
  read_json_schema(format, request);
  request.chat.options.response_format = described(format);
}

void read_output_config(JsonFields& fields, ChatRequest& request) {
  if (const Json* object = fields.object("output_config")) {
    JsonFields config(*object, "output_config", fields.error());
    const std::string effort = config.string("effort");
    if (effort == "low") request.chat.options.effort = ReasoningEffort::kLow;
    if (effort == "medium") request.chat.options.effort = ReasoningEffort::kMedium;
    if (effort == "high" || effort == "xhigh" || effort == "max") {
      request.chat.options.effort = ReasoningEffort::kHigh;
    }
    if (const Json* inner = config.object("format")) {
      JsonFields format(*inner, "output_config.format", fields.error());
      read_answer_format(format, request);
    }
  }
  if (const Json* object = fields.object("output_format")) {  // its older place
    JsonFields format(*object, "output_format", fields.error());
    read_answer_format(format, request);
  }
}

void read_stops(JsonFields& fields, ChatRequest& request) {
  const Json* stops = fields.array("stop_sequences");
  if (!stops) return;
  if (stops->size() > kMaxStops) return fields.fail("stop_sequences", "has more than 64 strings");
  size_t bytes = 0;
  for (const Json& stop : *stops) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
      return fields.fail("stop_sequences", "has to be an array of strings that are not empty");
    }
    request.stop.push_back(stop.get<std::string>());
    bytes += request.stop.back().size();
  }
  if (bytes > kMaxStopBytes) fields.fail("stop_sequences", "has more than 8192 bytes in all");
}

}  // namespace

std::optional<ApiError> parse_messages_request(std::string_view body,
                                               const SamplingParams& defaults,
                                               const MessagesRules& rules, ChatRequest& request) {
  return read_body(body, [&](JsonFields& fields) {
    if (fields.has("thread")) {  // by this code a client knows to send all messages itself
      fields.fail("thread", "is not supported: nothing is stored; send all messages");
      fields.error()->code = "thread_unsupported_request";
    }
    request.model = fields.string("model");
    request.sampling = defaults;
    SamplingParams& sampling = request.sampling;
    sampling.temperature =
        static_cast<float>(fields.number("temperature", sampling.temperature, 0, 1));
    sampling.top_p = static_cast<float>(fields.number("top_p", sampling.top_p, 1e-6, 1));
    sampling.top_k = static_cast<int32_t>(fields.integer("top_k", sampling.top_k, 0, kMaxTokens));
    if (!rules.counting && !fields.has("max_tokens")) fields.fail("max_tokens", "is missing");
    request.max_tokens = fields.integer("max_tokens", 1, 1, kMaxTokens);
    request.stream = fields.boolean("stream", false);
    read_scheduling(fields, request);
    read_stops(fields, request);
    ToolOffer tools;
    read_tools(fields, tools);
    read_messages(fields, rules, tools, request.chat);
    request.chat.tools = tools.offered();
    read_tool_choice(fields, request);
    read_thinking(fields, request);
    read_output_config(fields, request);
  });
}

}  // namespace nibble::server
