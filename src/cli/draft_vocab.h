// The ids that a head with the target's own matrix is to choose its drafts among, as a file lists
// them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::cli {

// A vocabulary has no more ids.
inline constexpr int32_t kMostDraftIds = 1 << 24;

// A JSON list of ids, each once. Throws Error(kUsage) that names `origin`.
std::vector<int32_t> parse_draft_vocab(std::string_view text, const std::string& origin);

// The first `size` of the ids in `file`; 0: all of them. Without a file the first of all ids.
std::vector<int32_t> read_draft_vocab(const std::string& file, int32_t size);

}  // namespace nibble::cli
