// The part of a chat request that is the conversation: messages, tools and how to answer.
#pragma once

#include "server/json_fields.h"
#include "text/chat/chat.h"

namespace nibble::server {

// Why a part of a message's content that is no text is refused.
std::string not_text(const Json& part);

// Reads messages, tools, tool_choice, reasoning_effort, reasoning, include_reasoning, verbosity and
// chat_template_kwargs, and the old form of tools: functions and function_call. What is wrong goes
// to the error of `fields`.
void read_chat(JsonFields& fields, Chat& chat, bool& include_reasoning);

// tool_choice's {"mode","tools"}, where they stand: leaves the tools of the chat that are listed.
void read_allowed_tools(JsonFields& allowed, Chat& chat);

// "low", "medium" or "high".
void read_verbosity(JsonFields& fields, Chat& chat);

// A name of a function or user: 1 to 128 letters, digits, _, - or ., since it becomes part of a
// message's header.
std::string read_name(JsonFields& fields, const char* field);

}  // namespace nibble::server
