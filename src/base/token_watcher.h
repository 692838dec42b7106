// Something that follows a sequence token by token: stop strings, Harmony, grammars. Declared here
// so that the engine (which never sees text) can call what `text` implements.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace nibble {

enum class Watch { kGoOn, kStop };
// kPending: the mask for the next token is being made elsewhere. kFailed: it never comes.
enum class MaskState { kReady, kPending, kFailed };

class TokenWatcher {
 public:
  virtual ~TokenWatcher() = default;

  // One sampled token. kStop ends the request with finish reason "stop".
  virtual Watch accept(int32_t id) = 0;
  // Takes back the last n accepted tokens (speculation).
  virtual void rollback(int n) = 0;
  // Clears the bits of tokens that may not come next; bit i of bits[i / 32] is token i. Returns
  // false, and leaves the bits alone, where everything is allowed.
  // Only where mask_state() is kReady.
  virtual bool mask(std::span<uint32_t> bits) = 0;
  virtual MaskState mask_state() const { return MaskState::kReady; }
  virtual std::string fault() const { return ""; }  // where it is kFailed: why
  // Which of kParts parts of an answer the next token is of: reasoning and content are apart in how
  // well they can be foretold.
  static constexpr int kParts = 4;
  virtual int part() const { return 0; }
  // Once, before the first token: what to call, from any thread, when kPending ends.
  virtual void on_mask(std::function<void()> /*changed*/) {}
};

}  // namespace nibble
