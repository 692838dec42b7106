#include "text/tokenizer/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <random>

#include "text/utf8.h"

namespace nibble {
namespace {

// utf8proc's own, which is right, if slow on marks in the wrong order.
std::string reference(const std::string& text) {
  const std::unique_ptr<uint8_t, decltype(&std::free)> out(
      utf8proc_NFC(reinterpret_cast<const uint8_t*>(text.c_str())), &std::free);
  return reinterpret_cast<const char*>(out.get());
}

TEST(Nfc, AgreesWithUtf8proc) {
  // Letters that compose, marks of several classes, Hangul parts, singletons and exclusions.
  constexpr char32_t kCodes[] = {U'a',   U'e',   U'A',   U'o',   0xC5,    0x212B,  0x301,
                                 0x308,  0x316,  0x323,  0x31B,  0x345,   0x1112,  0x1161,
                                 0x11AB, 0xAC00, 0x958,  0x915,  0x93C,   0x2126,  0x1E69,
                                 0x3099, 0x304B, 0xFB1D, 0x2ADC, 0x1D15E, 0x110A5, 0x110BA};
  std::mt19937 rng(5);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (int n = static_cast<int>(rng() % 10); n >= 0; --n) {
      utf8::append(kCodes[rng() % std::size(kCodes)], text);
    }
    ASSERT_EQ(to_nfc(text), reference(text)) << text;
  }
}

TEST(Nfc, AgreesWithUtf8procOnEveryCodePoint) {
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    utf8::append(c, text);
    const std::string expected = reference(text);
    ASSERT_EQ(to_nfc(text), expected) << static_cast<uint32_t>(c);
    if (is_plainly_nfc(text)) {
      ASSERT_EQ(expected, text) << static_cast<uint32_t>(c);
    }
  }
}

TEST(Nfc, PlainTextIsKnownAtAGlance) {
  EXPECT_TRUE(is_plainly_nfc("plain \xC3\xA9\xCB\xBF"));  // up to U+02FF
  EXPECT_FALSE(is_plainly_nfc("e\xCC\x81"));
}

}  // namespace
}  // namespace nibble
