// How much memory work on a caller's texts takes, and who is asked for it.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace nibble {

// Asked for so many bytes more before they are used; false: there are none. What was granted counts
// until the work that asked is done: who is asked gives it back then.
using TakeBytes = std::function<bool(size_t bytes)>;

// The most that a JSON text takes as values of nlohmann::ordered_json, while they are made, held
// and destroyed. Any bytes: whether they are JSON does not matter.
size_t json_bytes(std::string_view text);

}  // namespace nibble
