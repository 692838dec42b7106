#include "text/chat/harmony.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "text/chat/harmony_header.h"
#include "text/chat/harmony_tools.h"

namespace nibble {
namespace {

constexpr std::string_view kConstrain = "<|constrain|>";
constexpr std::array<std::pair<std::string_view, int32_t HarmonyIds::*>, 7> kSpecials = {{
    {"<|start|>", &HarmonyIds::start},
    {"<|end|>", &HarmonyIds::end},
    {"<|message|>", &HarmonyIds::message},
    {"<|channel|>", &HarmonyIds::channel},
    {kConstrain, &HarmonyIds::constrain},
    {"<|call|>", &HarmonyIds::call},
    {"<|return|>", &HarmonyIds::stop},
}};

// Names stand in headers, so they must not hold spaces or anything else that a header means.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 256 &&
         std::all_of(text.begin(), text.end(), is_harmony_name_char);
}

Failure bad_name(const std::string& where, const std::string& name) {
  return Failure{where + ": name '" + name +
                 "' must be 1 to 256 of the characters a-z A-Z 0-9 _ - . : /"};
}

std::string system_text(const ChatOptions& options, const std::string& builtin_tools,
                        bool has_functions) {
  std::string out = options.model_identity;
  const auto add_line = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) out += (out.empty() ? "" : "\n") + name + value;
  };
  const auto add_section = [&](const std::string& text) {
    if (!text.empty()) out += (out.empty() ? "" : "\n\n") + text;
  };
  add_line("Knowledge cutoff: ", options.knowledge_cutoff);
  add_line("Current date: ", options.current_date);
  add_section("Reasoning: " + std::string(reasoning_effort_name(
                                  options.effort.value_or(ReasoningEffort::kMedium))));
  add_section(builtin_tools);
  add_section(
      "# Valid channels: analysis, commentary, final. Channel must be included for every message.");
  if (has_functions) {
    out += "\nCalls to these tools must go to the commentary channel: 'functions'.";
  }
  return out;
}

// Harmony has no field for it.
std::string_view wish_of(Verbosity verbosity) {
  return verbosity == Verbosity::kLow    ? "Keep your answer short."
         : verbosity == Verbosity::kHigh ? "Answer at length and in detail."
                                         : "";
}

HarmonyMessage assistant(std::string channel, std::string content) {
  return {.header = {.author = "assistant", .channel = std::move(channel)},
          .content = std::move(content)};
}

// One chat's messages, one after the other.
class ChatMapping {
 public:
  explicit ChatMapping(const Chat& chat) : chat_(chat) {}

  // All messages but an unfinished last one.
  Result<std::vector<HarmonyMessage>> run();

 private:
  bool has_functions() const {
    return !chat_.tools.empty() && chat_.options.tool_choice.kind != ToolChoice::Kind::kNone;
  }
  std::optional<Failure> add_system();
  std::optional<Failure> add_developer(const std::string* instructions);
  std::optional<Failure> add_message(const ChatMessage& message, const std::string& where);
  std::optional<Failure> add_assistant(const ChatMessage& message, const std::string& where);
  void drop_old_analysis();

  const Chat& chat_;
  std::vector<HarmonyMessage> out_;
  std::map<std::string, std::string> functions_by_call_;  // the latest of an id
};

std::optional<Failure> ChatMapping::add_system() {
  std::vector<ToolNamespace> builtin = chat_.options.builtin_tools;
  std::sort(builtin.begin(), builtin.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  std::string tools;
  if (!builtin.empty()) {
    Result<std::string> text = render_tools(builtin);
    if (!text) return Failure{text.error()};
    tools = std::move(*text);
  }
  out_.push_back({.header = {.author = "system"},
                  .content = system_text(chat_.options, tools, has_functions())});
  return {};
}

std::optional<Failure> ChatMapping::add_developer(const std::string* instructions) {
  std::string text;
  const auto add_section = [&](const std::string& section) {
    text += (text.empty() ? "" : "\n\n") + section;
  };
  std::string all = instructions != nullptr ? *instructions : "";
  if (const std::string_view wish = wish_of(chat_.options.verbosity); !wish.empty()) {
    all.append(all.empty() ? "" : "\n\n").append(wish);
  }
  if (!all.empty()) add_section("# Instructions\n\n" + all);
  if (has_functions()) {
    for (size_t i = 0; i < chat_.tools.size(); ++i) {
      const std::string& name = chat_.tools[i].name;
      if (!is_name(name)) return bad_name("tools[" + std::to_string(i) + "]", name);
    }
    const ToolNamespace functions{.name = "functions", .description = "", .tools = chat_.tools};
    Result<std::string> tools = render_tools({&functions, 1});
    if (!tools) return Failure{"tools: " + tools.error()};
    add_section(*tools);
  }
  if (const auto& format = chat_.options.response_format) {
    const Result<std::string> schema = compact_json(format->schema, "response_format: the schema");
    if (!schema) return Failure{schema.error()};
    const std::string comment =
        format->description.empty() ? "" : "// " + format->description + "\n";
    add_section("# Response Formats\n\n## " + format->name + "\n\n" + comment + *schema);
  }
  if (!text.empty()) out_.push_back({.header = {.author = "developer"}, .content = text});
  return {};
}

std::optional<Failure> ChatMapping::add_assistant(const ChatMessage& message,
                                                  const std::string& where) {
  if (!message.reasoning.empty()) out_.push_back(assistant("analysis", message.reasoning));
  const bool calls = !message.tool_calls.empty();
  if (!message.content.empty() || (!calls && message.reasoning.empty())) {
    out_.push_back(assistant(calls ? "commentary" : "final", message.content));
  }
  for (const ToolCall& call : message.tool_calls) {
    if (!is_name(call.name)) return bad_name(where + ".tool_calls", call.name);
    out_.push_back({.header = {.author = "assistant",
                               .recipient = "functions." + call.name,
                               .channel = "commentary",
                               .content_type = "json"},
                    .content = call.arguments});
    functions_by_call_[call.id] = call.name;
  }
  return {};
}

std::optional<Failure> ChatMapping::add_message(const ChatMessage& message,
                                                const std::string& where) {
  if (message.role == Role::kAssistant) return add_assistant(message, where);
  const bool instructs = message.role == Role::kSystem || message.role == Role::kDeveloper;
  if (instructs && message.content.empty()) return {};
  // A second system message would outrank the developer's.
  HarmonyHeader header{.author =
                           std::string(role_name(instructs ? Role::kDeveloper : message.role))};
  if (message.role == Role::kUser && !message.name.empty()) {
    if (!is_name(message.name)) return bad_name(where, message.name);
    header.author += ":" + message.name;
  }
  if (message.role == Role::kTool) {
    const auto call = functions_by_call_.find(message.tool_call_id);
    if (call == functions_by_call_.end()) {
      return Failure{where + ": tool_call_id '" + message.tool_call_id +
                     "' is that of no tool call before it"};
    }
    header = {
        .author = "functions." + call->second, .recipient = "assistant", .channel = "commentary"};
  }
  out_.push_back({.header = std::move(header), .content = message.content});
  return {};
}

// Reasoning that led to an answer is not shown to the model again; what led to a call that the
// answer still waits for is.
void ChatMapping::drop_old_analysis() {
  const auto is_final = [](const HarmonyMessage& m) { return m.header.channel == "final"; };
  const auto last_final = std::find_if(out_.rbegin(), out_.rend(), is_final).base();
  const auto is_analysis = [](const HarmonyMessage& m) { return m.header.channel == "analysis"; };
  out_.erase(std::remove_if(out_.begin(), last_final, is_analysis), last_final);
}

Result<std::vector<HarmonyMessage>> ChatMapping::run() {
  const auto& messages = chat_.messages;
  if (messages.empty()) return Failure{"messages: at least one is needed"};
  const bool instructed = messages[0].role == Role::kSystem || messages[0].role == Role::kDeveloper;
  if (auto failure = add_system()) return *failure;
  if (auto failure = add_developer(instructed ? &messages[0].content : nullptr)) return *failure;
  const size_t end = messages.size() - (chat_.options.continue_final_message ? 1 : 0);
  for (size_t i = instructed ? 1 : 0; i < end; ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    if (auto failure = add_message(messages[i], where)) return *failure;
  }
  drop_old_analysis();
  return std::move(out_);
}

// The message that the prompt leaves open; none: the model writes its own header.
Result<std::optional<HarmonyMessage>> open_message(const Chat& chat) {
  const ChatOptions& options = chat.options;
  const bool named = options.tool_choice.kind == ToolChoice::Kind::kNamed;
  if (options.continue_final_message) {
    const ChatMessage& last = chat.messages.back();
    if (last.role != Role::kAssistant || !last.tool_calls.empty()) {
      return Failure{
          "continue_final_message: the last message must be an assistant's without tool calls"};
    }
    if (named) return Failure{"continue_final_message: cannot go with a tool_choice by name"};
    if (!last.content.empty() || options.skip_reasoning) return {assistant("final", last.content)};
    if (!last.reasoning.empty()) return {assistant("analysis", last.reasoning)};
    return std::optional<HarmonyMessage>{};
  }
  if (named) {
    const auto& name = options.tool_choice.name;
    const auto is_it = [&](const FunctionTool& tool) { return tool.name == name; };
    if (std::none_of(chat.tools.begin(), chat.tools.end(), is_it)) {
      return Failure{"tool_choice: function '" + name + "' is not among the tools"};
    }
    HarmonyMessage call = assistant("commentary", "");
    call.header.recipient = "functions." + name;
    call.header.content_type = std::string(kConstrain) + "json";
    return {call};
  }
  if (options.skip_reasoning) return {assistant("final", "")};
  return std::optional<HarmonyMessage>{};
}

}  // namespace

bool Harmony::fits(const Tokenizer& tokenizer) {
  return std::all_of(kSpecials.begin(), kSpecials.end(), [&](const auto& special) {
    return tokenizer.find_special(special.first).has_value();
  });
}

Harmony::Harmony(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  std::string missing;
  for (const auto& [name, id] : kSpecials) {
    const std::optional<int32_t> found = tokenizer.find_special(name);
    ids_.*id = found.value_or(-1);
    if (!found) missing.append(missing.empty() ? "" : ", ").append(name);
  }
  if (missing.empty()) return;
  throw Error(ErrorKind::kUnsupported,
              "the tokenizer has no " + missing + ": its model does not speak Harmony");
}

void Harmony::append_text(std::string_view text, std::vector<int32_t>& ids) const {
  const std::vector<int32_t> encoded = tokenizer_.encode(text, Specials::kAsText);
  ids.insert(ids.end(), encoded.begin(), encoded.end());
}

void Harmony::append_open(const HarmonyMessage& message, std::vector<int32_t>& ids) const {
  const HarmonyHeader& header = message.header;
  ids.push_back(ids_.start);
  append_text(header.author, ids);
  if (!header.recipient.empty()) append_text(" to=" + header.recipient, ids);
  if (!header.channel.empty()) {
    ids.push_back(ids_.channel);
    append_text(header.channel, ids);
  }
  if (header.content_type.starts_with(kConstrain)) {
    append_text(" ", ids);
    ids.push_back(ids_.constrain);
    append_text(std::string_view(header.content_type).substr(kConstrain.size()), ids);
  } else if (!header.content_type.empty()) {
    append_text(" " + header.content_type, ids);
  }
  ids.push_back(ids_.message);
  append_text(message.content, ids);
}

std::vector<int32_t> Harmony::render(std::span<const HarmonyMessage> messages) const {
  std::vector<int32_t> ids;
  for (const HarmonyMessage& message : messages) {
    append_open(message, ids);
    const bool call = message.header.author == "assistant" && !message.header.recipient.empty();
    ids.push_back(call ? ids_.call : ids_.end);
  }
  return ids;
}

Result<ChatPrompt> Harmony::render(const Chat& chat) const {
  Result<std::vector<HarmonyMessage>> messages = ChatMapping(chat).run();
  if (!messages) return Failure{messages.error()};
  const Result<std::optional<HarmonyMessage>> open = open_message(chat);
  if (!open) return Failure{open.error()};
  if (!*open) {
    ChatPrompt prompt{.ids = render(*messages)};
    prompt.ids.push_back(ids_.start);
    append_text("assistant", prompt.ids);
    return prompt;
  }
  const HarmonyMessage& prefill = **open;
  // An unfinished answer keeps the reasoning that led to it.
  const std::string& reasoning = chat.messages.back().reasoning;
  if (chat.options.continue_final_message && prefill.header.channel == "final" &&
      !reasoning.empty()) {
    messages->push_back(assistant("analysis", reasoning));
  }
  ChatPrompt prompt{.ids = render(*messages),
                    .start = {.in_content = true, .header = prefill.header}};
  append_open(prefill, prompt.ids);
  return prompt;
}

}  // namespace nibble
