// What somebody may have meant by a word that nothing is called.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble::cli {

// "; did you mean 'serve'?", or "" where no name is near: a third of the letters may be wrong.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

}  // namespace nibble::cli
