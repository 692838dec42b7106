// Any ids into HarmonyParser and ChatStream. Input: a character for where the answer starts, text
// with special tokens spelled out, and behind the first zero byte raw 32-bit ids.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "text/chat/chat_stream.h"
#include "text/chat/harmony_for_test.h"
#include "text/chat/harmony_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble;
  static const Harmony harmony(byte_tokenizer());
  static const HarmonyFormat format(byte_tokenizer());
  if (size == 0 || size > 4096) return 0;
  const HarmonyStart start = start_of(static_cast<char>(data[0]));
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t text_size = std::min(input.find('\0'), input.size());
  std::vector<int32_t> ids =
      byte_tokenizer().encode(input.substr(0, text_size), Specials::kRecognize);
  for (size_t at = text_size + 1; at + 4 <= input.size(); at += 4) {
    std::memcpy(&ids.emplace_back(), input.data() + at, 4);
  }
  check_parse(harmony, start, ids, 4);

  ChatStreamOptions options;
  options.start = start;
  options.stop = nibble::StopStrings({"END", "\n\n"});
  ChatStream stream(format, options);
  std::string content, reasoning;
  for (const int32_t id : ids) {
    const ChatDelta delta = stream.push(id);
    content += delta.content;
    reasoning += delta.reasoning;
  }
  content += stream.finish().content;
  CHECK(content == stream.reply().content);
  CHECK(reasoning.size() <= stream.reply().reasoning.size());
  CHECK(content.find("END") == std::string::npos);
  return 0;
}
