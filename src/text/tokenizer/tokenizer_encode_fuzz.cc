// Any bytes as text: no byte is lost, no special token slips in, streaming equals decoding at once.
// Runs on the small tokenizers of tests/data.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "text/tokenizer/tokenizer.h"
#include "text/utf8.h"

namespace {

using nibble::Specials;
using nibble::Tokenizer;

const Tokenizer& family(const char* name) {
  return *new Tokenizer(
      Tokenizer::load(std::string(NIBBLE_SOURCE_DIR "/tests/data/tokenizers/") + name));
}

std::string stream(const Tokenizer& t, const std::vector<int32_t>& ids) {
  nibble::Detokenizer detokenizer(t);
  std::string streamed;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    CHECK(nibble::utf8::valid_prefix(piece) == piece.size());
    streamed += piece;
  }
  return streamed + detokenizer.flush();
}

void check(const Tokenizer& t, std::string_view text, bool keeps_bytes) {
  const auto ids = t.encode(text);
  for (const int32_t id : ids) CHECK(!t.is_special(id));
  const std::string decoded = t.decode(ids);
  if (keeps_bytes) {
    CHECK(t.decode_bytes(ids) == text);
    const auto recognized = t.encode(text, Specials::kRecognize);
    if (recognized != ids) CHECK(t.decode_bytes(recognized) == text);
    if (nibble::utf8::valid_prefix(text) == text.size()) CHECK(decoded == text);
  }
  CHECK(t.encode(text) == ids);  // the cache changes nothing
  CHECK(stream(t, ids) == decoded);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer& llama3 = family("llama3");
  static const Tokenizer& deepseek = family("deepseek");
  static const Tokenizer& qwen2 = family("qwen2");  // NFC: bytes may change
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(llama3, text, true);
  check(deepseek, text, true);
  check(qwen2, text, false);
  return 0;
}
