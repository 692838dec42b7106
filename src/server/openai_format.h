// The form that an answer is to have: OpenAI's response_format, vLLM's structured_outputs and its
// older guided_json, guided_regex, guided_choice and guided_grammar.
#pragma once

#include "server/generation_request.h"
#include "server/json_fields.h"

namespace nibble::server {

// At most one of them; too large a one is refused here, before anything compiles it.
void read_format(JsonFields& fields, GenerationRequest& request);
// The object with "schema" and "strict": inside response_format, and text.format of /v1/responses.
// Keywords that cannot be kept to are refused unless strict is false.
void read_json_schema(JsonFields& format, GenerationRequest& request);

// Tells the model of response_format's schema, as Harmony does it.
void describe_format(JsonFields& fields, ChatRequest& request);
// The same from the object with "name", "description" and "schema".
ResponseFormat described(JsonFields& format);

}  // namespace nibble::server
