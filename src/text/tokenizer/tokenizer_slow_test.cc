// Ten megabytes of what tokenizers dislike: nothing is lost, and it ends. (A cost that is quadratic
// anywhere would run into the time limit of the test program.)
#include <gtest/gtest.h>

#include "text/tokenizer/tokenizer.h"

namespace nibble {
namespace {

constexpr size_t kBytes = 10'000'000;

std::string repeat(std::string_view unit, size_t bytes = kBytes) {
  std::string text;
  text.reserve(bytes + unit.size());
  while (text.size() < bytes) text += unit;
  return text;
}

class Hostile : public testing::TestWithParam<const char*> {
 protected:
  const Tokenizer tokenizer =
      Tokenizer::load(std::string(NIBBLE_SOURCE_DIR "/tests/data/tokenizers/") + GetParam());
};

TEST_P(Hostile, NothingIsLost) {
  const bool nfc = GetParam() == std::string("qwen2");
  for (const std::string& text :
       {repeat("a"), repeat("A"), repeat(" "), repeat("\n"), "\n" + repeat(" "), repeat("a b "),
        repeat("7"), repeat("!"), repeat("'s"), repeat("\xCC\x81"), repeat("\xE6\x97\xA5"),
        repeat("\xF0\x9F\x92\x96"), repeat("<|"), repeat("\xFF"), repeat("a\xFF"),
        repeat(" \xE3\x80\x80"), repeat("Aa")}) {
    EXPECT_TRUE(tokenizer.decode_bytes(tokenizer.encode(text)) == text)
        << text.substr(0, 12) << "...";
  }
  // Marks in the wrong order: NFC must sort all of them.
  const std::string above = repeat("\xCC\x81", kBytes / 2), below = repeat("\xCC\x96", kBytes / 2);
  const std::string marks = tokenizer.decode_bytes(tokenizer.encode("x" + above + below));
  EXPECT_TRUE(marks == "x" + (nfc ? below + above : above + below));
}

TEST_P(Hostile, HalfASpecialTokenOverAndOver) {
  const std::string text = repeat("<|reserved_special_token_");
  EXPECT_TRUE(tokenizer.decode_bytes(tokenizer.encode(text, Specials::kRecognize)) == text);
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Hostile, testing::Values("llama3", "qwen2", "deepseek"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace nibble
