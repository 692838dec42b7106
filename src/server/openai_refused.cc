#include "server/openai_refused.h"

namespace nibble::server {
namespace {

constexpr const char* kUseFormat = "is not supported: use response_format or structured_outputs";
constexpr const char* kNoSampler = "is not supported: use temperature, top_p, top_k or min_p";
constexpr const char* kTextOnly = "is not supported: text in, text out";

struct Refused {
  const char* name;
  const char* neutral;  // JSON of the value that asks for nothing; more are false, 0, "", [] and {}
  const char* why;
};

constexpr Refused kRefused[] = {
    {"grammar", "null", kUseFormat},
    {"json_schema", "null", kUseFormat},
    {"regex", "null", kUseFormat},
    {"ebnf", "null", kUseFormat},
    {"use_beam_search", "false", "is not supported"},
    {"length_penalty", "1.0", "is not supported: it belongs to beam search"},
    {"typical_p", "1.0", kNoSampler},
    {"tfs_z", "1.0", kNoSampler},
    {"top_a", "0", kNoSampler},
    {"mirostat", "0", kNoSampler},
    {"dry_multiplier", "0", kNoSampler},
    {"xtc_probability", "0", kNoSampler},
    {"dynatemp_range", "0", kNoSampler},
    {"allowed_token_ids", "null", "is not supported: use logit_bias"},
    {"bad_words", "[]", "is not supported: use logit_bias"},
    {"truncate_prompt_tokens", "null", "is not supported: shorten the prompt yourself"},
    {"lora", "null", "is not supported: nibble loads no adapters"},
    {"lora_request", "null", "is not supported: nibble loads no adapters"},
    {"logits_processors", "null", "is not supported"},
    {"return_tokens_as_token_ids", "false", "is not supported"},
};

constexpr Refused kRefusedInChats[] = {
    {"audio", "null", kTextOnly},
    {"web_search_options", "null", "is not supported: nibble browses nothing"},
    {"documents", "[]", "is not supported: put them into a message"},
    {"chat_template", "null", "is not supported: the model's own format is built in"},
    {"echo", "false", "is not supported in chats: use /v1/completions"},
    {"prompt_logprobs", "null", "is not supported in chats: use /v1/completions with echo"},
    {"skip_special_tokens", "true",
     "can only be true in chats: /v1/completions shows special tokens"},
    {"separate_reasoning", "true", "can only be true: reasoning is never part of content"},
};

bool asks_for_nothing(const Json& value, const char* neutral) {
  if (value == Json::parse(neutral)) return true;
  if (value.is_boolean()) return !value.get<bool>() && std::string_view(neutral) != "true";
  if (value.is_string() || value.is_structured()) {
    return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
  }
  return false;
}

template <size_t N>
void refuse_all(JsonFields& fields, const Refused (&list)[N]) {
  for (const Refused& refused : list) {
    const Json* value = fields.find(refused.name);
    if (value && !asks_for_nothing(*value, refused.neutral)) fields.fail(refused.name, refused.why);
  }
}

}  // namespace

void refuse_unsupported_fields(JsonFields& fields) { refuse_all(fields, kRefused); }

void refuse_unsupported_chat_fields(JsonFields& fields) {
  refuse_all(fields, kRefusedInChats);
  if (const Json* modalities = fields.array("modalities")) {
    for (const Json& modality : *modalities) {
      if (modality != "text") fields.fail("modalities", kTextOnly);
    }
  }
}

}  // namespace nibble::server
