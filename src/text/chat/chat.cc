#include "text/chat/chat.h"

#include <array>

#include "text/memory_use.h"

namespace nibble {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};
constexpr std::array<std::string_view, 3> kEfforts = {"low", "medium", "high"};
// What the APIs know; an effort that the model does not have is the nearest that it has.
constexpr std::array<std::string_view, 7> kEffortNames = {"none", "minimal", "low", "medium",
                                                          "high", "xhigh",   "max"};
constexpr std::array<ReasoningEffort, 7> kEffortOfNames = {
    ReasoningEffort::kLow,  ReasoningEffort::kLow,  ReasoningEffort::kLow, ReasoningEffort::kMedium,
    ReasoningEffort::kHigh, ReasoningEffort::kHigh, ReasoningEffort::kHigh};

// The name's place in `names`.
template <size_t N>
Result<size_t> find_name(const std::array<std::string_view, N>& names, std::string_view name,
                         std::string_view what) {
  std::string known;
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) return i;
    known.append(i == 0 ? "" : i + 1 == N ? " or " : ", ").append(names[i]);
  }
  return Failure{std::string(what) + " '" + std::string(name) + "' is not known: use " + known};
}

}  // namespace

Result<Role> parse_role(std::string_view name) {
  const Result<size_t> place = find_name(kRoles, name, "role");
  if (!place) return Failure{place.error()};
  return static_cast<Role>(*place);
}

Result<ReasoningEffort> parse_reasoning_effort(std::string_view name) {
  const Result<size_t> place = find_name(kEffortNames, name, "reasoning_effort");
  if (!place) return Failure{place.error()};
  return kEffortOfNames[*place];
}

size_t text_bytes(const Chat& chat) {
  size_t bytes = chat.options.template_variables.size();
  if (const auto& format = chat.options.response_format) {
    bytes += format->name.size() + format->description.size() + format->schema.size();
  }
  for (const FunctionTool& tool : chat.tools) {
    bytes += tool.name.size() + tool.description.size() + tool.parameters.size();
  }
  for (const ChatMessage& message : chat.messages) {
    bytes += message.content.size() + message.name.size() + message.reasoning.size() +
             message.tool_call_id.size();
    for (const ToolCall& call : message.tool_calls) {
      bytes += call.id.size() + call.name.size() + call.arguments.size();
    }
  }
  return bytes;
}

size_t json_bytes(const Chat& chat) {
  constexpr size_t kObject = 1'000;  // around a message, a call, a tool: a few keys
  size_t bytes = 2 * text_bytes(chat) + json_bytes(chat.options.template_variables);
  for (const FunctionTool& tool : chat.tools) bytes += kObject + json_bytes(tool.parameters);
  for (const ChatMessage& message : chat.messages) {
    bytes += kObject;
    for (const ToolCall& call : message.tool_calls) bytes += kObject + json_bytes(call.arguments);
  }
  return bytes;
}

std::string_view role_name(Role role) { return kRoles[static_cast<size_t>(role)]; }

std::string_view reasoning_effort_name(ReasoningEffort effort) {
  return kEfforts[static_cast<size_t>(effort)];
}

}  // namespace nibble
