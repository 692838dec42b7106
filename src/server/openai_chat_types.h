// The part of a chat request that is the conversation: messages, tools and how to answer.
#pragma once

#include "server/json_fields.h"
#include "text/chat/chat.h"

namespace nibble::server {

// Reads messages, tools, tool_choice, reasoning_effort, reasoning, include_reasoning and
// chat_template_kwargs. What is wrong goes to the error of `fields`.
void read_chat(JsonFields& fields, Chat& chat, bool& include_reasoning);

// A name of a function or user: 1 to 128 letters, digits, _, - or ., since it becomes part of a
// message's header.
std::string read_name(JsonFields& fields, const char* field);

}  // namespace nibble::server
