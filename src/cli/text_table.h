// TextTable: rows of cells, printed in aligned columns or as Markdown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nibble::cli {

class TextTable {
 public:
  // Columns whose header starts with '>' are aligned to the right; the mark is not printed.
  explicit TextTable(const std::vector<std::string>& header);
  // As many cells as the header has.
  void add(std::vector<std::string> cells);

  // Both end in a newline.
  std::string plain() const;     // two blanks between columns
  std::string markdown() const;  // | a | b |

 private:
  std::string line(const std::vector<std::string>& cells, const char* open, const char* between,
                   const char* close) const;

  std::vector<bool> to_right_;
  std::vector<size_t> widths_;
  std::vector<std::vector<std::string>> rows_;  // the header first
};

std::string with_commas(int64_t n);                    // 65,248,815,744
std::string fixed_digits(double value, int decimals);  // 54.57

}  // namespace nibble::cli
