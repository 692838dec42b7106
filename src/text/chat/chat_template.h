// A model's own chat template (Jinja, as Hugging Face `apply_chat_template` reads it), rendered by
// llama.cpp's engine within bounds of time, memory and depth.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/memory_use.h"

namespace nibble {

struct TemplateLimits {
  size_t bytes = size_t{1} << 30;  // made while rendering, temporaries included
  size_t output_bytes = size_t{64} << 20;
  int time_ms = 5'000;
  int depth = 1'000;
};

// A stretch of the rendered text. Only a literal, text that the template spells itself, may hold
// special tokens; what came out of a message, and whatever was made of it, may not.
struct TemplatePiece {
  std::string text;
  bool literal = false;
};

// Immutable; any number of threads may render (one after the other: the engine's memory is bounded
// once, not per thread).
class ChatTemplate {
 public:
  // Throws Error(kCheckpoint) naming `origin`, the line and what is wrong there.
  static ChatTemplate parse(std::string source, const std::string& origin,
                            const TemplateLimits& limits = {});

  // `variables`: a JSON object; the strings in it are text, but for the roles of messages.
  // `literals`: variables that hold special tokens (bos_token). Neighbours of one kind are joined.
  // `now`: what strftime_now shows, in local time.
  // `take` is asked for the memory that rendering takes, a MiB at a time; all counts until the end.
  // A failure is what the template raised, or which bound it broke.
  Result<std::vector<TemplatePiece>> render(
      std::string_view variables,
      const std::vector<std::pair<std::string, std::string>>& literals = {},
      std::time_t now = std::time(nullptr),
      const TakeBytes& take = [](size_t) { return true; }) const;

  const std::string& source() const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace nibble
