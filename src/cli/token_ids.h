// Token ids as people and programs write them: 5,17,42 or [5, 17, 42] or one a line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::cli {

// Whole numbers with blanks, commas or brackets between. Throws Error(kUsage) naming `origin` and
// the first word that is none.
std::vector<int32_t> parse_token_ids(std::string_view text, const std::string& origin);

// Those in a file, at least one. Throws Error.
std::vector<int32_t> read_token_ids(const std::string& file);

}  // namespace nibble::cli
