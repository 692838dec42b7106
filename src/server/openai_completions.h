// POST /v1/completions: text or ids in, text out, without a chat format.
#pragma once

#include <memory>

#include "server/generation.h"
#include "server/http.h"
#include "server/openai_types.h"

namespace nibble::server {

// Encodes, submits and answers. Special tokens spelled out in a prompt are recognised: the prompt
// is the caller's as a whole. (In chats they never are.) What encoding takes is added to `work`.
void start_completion(const GenerationContext& context, CompletionRequest request,
                      std::shared_ptr<HttpReply> reply, ByteShare& work);

}  // namespace nibble::server
