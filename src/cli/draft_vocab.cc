#include "cli/draft_vocab.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "base/error.h"
#include "cli/json.h"
#include "io/files.h"

namespace nibble::cli {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::kUsage, "--speculative-config: draft_vocab_" + what);
}

}  // namespace

std::vector<int32_t> parse_draft_vocab(std::string_view text, const std::string& origin) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array() || json.empty())
    refuse("file " + origin + " must hold a JSON list of ids, such as [220, 11, 13]");
  if (json.size() > kMostDraftIds)
    refuse("file " + origin + " lists more than " + std::to_string(kMostDraftIds) + " ids");
  std::vector<int32_t> ids;
  std::unordered_set<int32_t> seen;
  for (const Json& value : json) {
    if (!value.is_number_integer() || value < 0 || value >= kMostDraftIds)
      refuse("file " + origin + ": element " + std::to_string(ids.size()) +
             " of the list is no id from 0 on");
    ids.push_back(value);
    if (!seen.insert(ids.back()).second)
      refuse("file " + origin + " lists id " + std::to_string(ids.back()) + " twice");
  }
  return ids;
}

std::vector<int32_t> read_draft_vocab(const std::string& file, int32_t size) {
  std::vector<int32_t> ids(size);
  std::iota(ids.begin(), ids.end(), 0);
  if (file.empty()) return ids;
  constexpr int64_t kMostBytes = int64_t{64} << 20;
  std::string text;
  try {
    text = read_text_file(file, kMostBytes);
  } catch (const Error& e) {
    refuse("file " + std::string(e.what()));
  }
  ids = parse_draft_vocab(text, file);
  if (size > std::ssize(ids))
    refuse("size is " + std::to_string(size) + ", and draft_vocab_file " + file + " lists " +
           std::to_string(ids.size()) + " ids");
  if (size > 0) ids.resize(size);
  return ids;
}

}  // namespace nibble::cli
