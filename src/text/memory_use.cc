#include "text/memory_use.h"

namespace nibble {
namespace {

// A value is 16 bytes, 3 times while a list grows; a list or object has two more blocks, and a
// stack to be destroyed with; a string a block beside its characters; a key is one in a list of
// pairs.
constexpr size_t kItem = 50, kContainer = 100, kString = 50, kKey = 100;

}  // namespace

size_t json_bytes(std::string_view text) {
  size_t bytes = kItem + 2 * text.size();
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') {
      in_string = true;
      bytes += kString;
    }
    if (c == ',') bytes += kItem;
    if (c == '[' || c == '{') bytes += kContainer;
    if (c == ':') bytes += kKey;
  }
  return bytes;
}

}  // namespace nibble
