#include "text/memory_use.h"

#include "text/json_scan.h"

namespace nibble {
namespace {

// A value is 16 bytes, 3 times while a list grows; a list or object has two more blocks, and a
// stack to be destroyed with; a string a block beside its characters; a key is one in a list of
// pairs.
constexpr size_t kItem = 50, kContainer = 100, kString = 50, kKey = 100;

}  // namespace

size_t json_bytes(std::string_view text) {
  size_t bytes = kItem + 2 * text.size();
  for_each_outside_strings(text, [&](char c) {
    if (c == '"') bytes += kString;
    if (c == ',') bytes += kItem;
    if (c == '[' || c == '{') bytes += kContainer;
    if (c == ':') bytes += kKey;
    return true;
  });
  return bytes;
}

}  // namespace nibble
