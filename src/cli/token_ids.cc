#include "cli/token_ids.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

#include "base/error.h"

namespace nibble::cli {

std::vector<int32_t> parse_token_ids(std::string_view text, const std::string& origin) {
  constexpr std::string_view kBetween = " \t\r\n,[]";
  std::vector<int32_t> ids;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(kBetween), text.size()));
    if (text.empty()) return ids;
    const std::string_view word = text.substr(0, text.find_first_of(kBetween));
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size()) {
      throw Error(ErrorKind::kUsage,
                  origin + ": \"" + std::string(word.substr(0, 40)) + "\" is not a token id");
    }
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
}

std::vector<int32_t> read_token_ids(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw Error(ErrorKind::kNotFound, file + ": cannot be read");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  std::vector<int32_t> ids = parse_token_ids(text, file);
  if (ids.empty()) throw Error(ErrorKind::kUsage, file + ": no token ids");
  return ids;
}

}  // namespace nibble::cli
