// A conversation as every front end hands it over (the server from an OpenAI request, `nibble chat`
// from what was typed): plain values, no JSON types, no token ids.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nibble {

enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool };
enum class ReasoningEffort { kLow, kMedium, kHigh };

// "user" -> kUser, "xhigh" -> kHigh. A failure names the value and lists what is known.
Result<Role> parse_role(std::string_view name);
Result<ReasoningEffort> parse_reasoning_effort(std::string_view name);
std::string_view role_name(Role role);
std::string_view reasoning_effort_name(ReasoningEffort effort);

// What a piece of an answer is to the caller.
enum class ChatPart { kReasoning, kContent, kToolCall };

// What the ids of an answer say, in order. Begin and End alternate.
struct ChatEvent {
  enum class Kind {
    kBegin,  // a part opens
    kText,   // a piece of it, never empty, whole UTF-8 characters
    kEnd,    // it closes
    kStray   // text of no part
  };
  Kind kind;
  ChatPart part = ChatPart::kContent;
  std::string text = {};
  std::string function = {};  // kBegin of a kToolCall
};

struct ToolCall {
  std::string id;
  std::string name;       // without "functions."
  std::string arguments;  // as the model wrote it: JSON, where it kept to that
};

struct ChatMessage {
  Role role = Role::kUser;
  std::string content;
  std::string name;                  // kUser: who of several speaks
  std::string reasoning;             // kAssistant
  std::vector<ToolCall> tool_calls;  // kAssistant
  std::string tool_call_id;          // kTool: the ToolCall that this answers
};

struct FunctionTool {
  std::string name;
  std::string description;
  std::string parameters;  // JSON Schema as text, properties in the caller's order; "": no schema
  bool strict = false;     // a schema that cannot be enforced is an error
};

// Tools that the server itself runs, described in the system message (browser, python).
struct ToolNamespace {
  std::string name;
  std::string description;
  std::vector<FunctionTool> tools;
};

struct ToolChoice {
  enum class Kind { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  // kNamed
};

enum class Verbosity { kLow, kMedium, kHigh };

// The shape wanted of the answer, as a hint to the model; a grammar enforces it.
struct ResponseFormat {
  std::string name;
  std::string description;
  std::string schema;  // JSON Schema as text
};

struct ChatOptions {
  std::optional<ReasoningEffort> effort;     // Harmony's is medium where none is asked for
  Verbosity verbosity = Verbosity::kMedium;  // of the answer; kMedium: nothing is said of it
  std::string model_identity = "You are ChatGPT, a large language model trained by OpenAI.";
  std::string knowledge_cutoff = "2024-06";  // "": no such line
  std::string current_date;                  // "2026-11-21"; "": no such line
  std::vector<ToolNamespace> builtin_tools;
  ToolChoice tool_choice;
  std::optional<ResponseFormat> response_format;
  bool parallel_tool_calls = true;      // of formats that know more than one call an answer
  bool skip_reasoning = false;          // the answer starts with what the user sees
  std::string template_variables;       // of chat_template_kwargs: a JSON object, or ""
  bool continue_final_message = false;  // the last message, an assistant's, is unfinished: go on
};

struct Chat {
  std::vector<ChatMessage> messages;
  std::vector<FunctionTool> tools;  // functions that the caller runs
  ChatOptions options;
};

// Of all its texts.
size_t text_bytes(const Chat& chat);
// The memory of all of it as values of JSON, what is JSON in it parsed.
size_t json_bytes(const Chat& chat);

}  // namespace nibble
