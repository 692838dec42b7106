#include "cli/suggestion.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace nibble::cli {
namespace {

// Letters to be put in, taken out or changed, and neighbours to be swapped (optimal string
// alignment).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1), above, two_above;
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    two_above = std::exchange(above, row);
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({above[j] + (a[i] != b[j] ? 1 : 0), row[j] + 1, above[j + 1] + 1});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j]) {
        row[j + 1] = std::min(row[j + 1], two_above[j - 1] + 1);
      }
    }
  }
  return row.back();
}

}  // namespace

std::string did_you_mean(std::string_view word, const std::vector<std::string>& names) {
  const std::string* nearest = nullptr;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const size_t d = distance(word, name);
    if (d >= least) continue;
    least = d;
    nearest = &name;
  }
  return nearest ? "; did you mean '" + *nearest + "'?" : "";
}

}  // namespace nibble::cli
