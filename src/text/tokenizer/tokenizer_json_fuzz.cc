// Any bytes as a tokenizer.json: refused with an Error, or a tokenizer that keeps its promises.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "text/tokenizer/tokenizer.h"
#include "text/utf8.h"

namespace {

void use(const nibble::Tokenizer& t) {
  for (const std::string_view text :
       {"The quick brown fox, don't 123\n\n", " \xF0\x9F\x92\x96 e\xCC\x81\xFF <|end|>a"}) {
    for (const auto specials : {nibble::Specials::kAsText, nibble::Specials::kRecognize}) {
      const auto ids = t.encode(text, specials);
      for (const int32_t id : ids) CHECK(t.decodable(id) && id < t.size());
      const std::string decoded = t.decode(ids);
      CHECK(nibble::utf8::valid_prefix(decoded) == decoded.size());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    use(nibble::Tokenizer::parse(json, "fuzz"));
  } catch (const nibble::Error&) {
  }
  return 0;
}
