#include "server/openai_tokens.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "text/utf8.h"

namespace nibble::server {

double finite(float logprob) {
  constexpr double kLowest = -9999.0;  // as OpenAI and vLLM have it
  return std::isfinite(logprob) ? std::max<double>(logprob, kLowest) : kLowest;
}

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (utf8::valid_prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string text = "bytes:";
  for (const unsigned char byte : bytes) {
    std::array<char, 8> hex{};
    std::snprintf(hex.data(), hex.size(), "\\x%02X", byte);
    text += hex.data();
  }
  return text;
}

std::string ids_text(std::span<const int32_t> ids) {
  std::string text = "[";
  for (const int32_t id : ids) {
    if (text.size() > 1) text += ',';
    text += std::to_string(id);
  }
  return text + "]";
}

std::string token_texts(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string text = "[";
  for (const int32_t id : ids) {
    if (text.size() > 1) text += ',';
    text += to_text(token_text(tokenizer, id));
  }
  return text + "]";
}

Json token_json(const Tokenizer& tokenizer, int32_t id, float logprob) {
  Json bytes = Json::array();
  for (const unsigned char byte : tokenizer.token_bytes(id)) bytes.push_back(byte);
  return {{"token", token_text(tokenizer, id)},
          {"logprob", finite(logprob)},
          {"bytes", std::move(bytes)}};
}

Json token_with_top_json(const Tokenizer& tokenizer, const Output& output) {
  Json json = token_json(tokenizer, output.id, output.logprob);
  json["top_logprobs"] = Json::array();
  for (const TokenLogprob& top : output.top) {
    json["top_logprobs"].push_back(token_json(tokenizer, top.id, top.logprob));
  }
  return json;
}

const char* finish_name(FinishReason finish) {
  switch (finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kNone:
    case FinishReason::kCanceled:
    case FinishReason::kError:
    case FinishReason::kDeadline:
      break;
  }
  return "";
}

}  // namespace nibble::server
