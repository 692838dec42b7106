// Fields that clients of OpenAI, vLLM, SGLang and llama.cpp may send, that would change the answer,
// and that are not supported: refused rather than ignored.
#pragma once

#include "server/json_fields.h"

namespace nibble::server {

// Of both kinds of generation requests.
void refuse_unsupported_fields(JsonFields& fields);
// Of chats only.
void refuse_unsupported_chat_fields(JsonFields& fields);

}  // namespace nibble::server
