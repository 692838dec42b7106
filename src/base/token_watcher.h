// Something that follows a sequence token by token: stop strings, Harmony, grammars. Declared here
// so that the engine (which never sees text) can call what `text` implements.
#pragma once

#include <cstdint>
#include <span>

namespace nibble {

enum class Watch { kGoOn, kStop };

class TokenWatcher {
 public:
  virtual ~TokenWatcher() = default;

  // One sampled token. kStop ends the request with finish reason "stop".
  virtual Watch accept(int32_t id) = 0;
  // Takes back the last n accepted tokens (speculation).
  virtual void rollback(int n) = 0;
  // Clears the bits of tokens that may not come next; bit i of bits[i / 32] is token i. Returns
  // false, and leaves the bits alone, where everything is allowed.
  virtual bool mask(std::span<uint32_t> bits) = 0;
};

}  // namespace nibble
