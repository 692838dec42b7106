// Messages of a stranger to both sides of a handshake. The first byte says which message of a talk
// the rest takes the place of.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "dist/handshake.h"

namespace nibble::dist {
namespace {

Nonce nonce(char fill) {
  Nonce n;
  n.fill(fill);
  return n;
}

void talk(int place, const std::string& said) {
  const Identity same{"build", "model", "flags"};
  JoinerHandshake joiner("0123456789abcdef", same, {.rank = 1, .size = 2}, nonce('j'));
  HostHandshake host("0123456789abcdef", same, 2, nonce('h'));
  const std::string answer = host.on_hello(place == 0 ? said : joiner.hello());
  const std::string proof = joiner.on_answer(place == 1 ? said : answer);
  const std::string welcome = host.on_proof(place == 2 ? said : proof);
  joiner.on_welcome(place == 3 ? said : welcome);
  // Whoever gets here has said what the other side would have.
  CHECK(said == (place == 0 ? joiner.hello() : place == 1 ? answer : place == 2 ? proof : welcome));
}

}  // namespace
}  // namespace nibble::dist

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    nibble::dist::talk(data[0] % 4, std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  } catch (const nibble::Error&) {
    return 0;
  }
  return 0;
}
