// Any text as a schema, a regular expression or a grammar: a reason why not, or a grammar that a
// walk along its masks never leaves. Input: the kind as one byte, which ids the walk takes as
// another, the text.
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "text/chat/harmony_for_test.h"
#include "text/grammar/grammar.h"

namespace {

using nibble::GrammarCompiler;
using nibble::GrammarSpec;

constexpr int32_t kEnd = 256;  // <|return|> of byte_tokenizer()

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 1024) return 0;
  static const GrammarCompiler compiler(nibble::byte_tokenizer(), 270);
  constexpr GrammarSpec::Kind kKinds[] = {GrammarSpec::Kind::kJsonSchema, GrammarSpec::Kind::kRegex,
                                          GrammarSpec::Kind::kEbnf};
  GrammarSpec spec{.kind = kKinds[data[0] % 3],
                   .text = std::string(reinterpret_cast<const char*>(data) + 2, size - 2),
                   .lenient = data[0] >= 128};
  const auto grammar = compiler.compile(spec);
  if (!grammar) {
    CHECK(!grammar.error().empty());
    return 0;
  }
  nibble::GrammarRun run(*grammar, {kEnd});
  uint32_t random = data[1];
  for (int step = 0; step < 32; ++step) {
    std::vector<uint32_t> bits((270 + 31) / 32, ~uint32_t{0});
    run.mask(bits);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < 270; ++id) {
      if (bits[id / 32] >> (id % 32) & 1) allowed.push_back(id);
    }
    if (allowed.empty()) break;  // a grammar that forbids every token
    random = random * 1'664'525 + 1'013'904'223;
    const int32_t id = allowed[(random >> 8) % allowed.size()];
    CHECK(id <= kEnd);  // no other special token, no column without a token
    CHECK(run.accept(id));
    if (id == kEnd) break;
  }
  run.rollback_to(0);
  return 0;
}
