#include "cli/text_table.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace nibble::cli {

TextTable::TextTable(const std::vector<std::string>& header) {
  std::vector<std::string> names;
  for (const std::string& cell : header) {
    to_right_.push_back(cell.starts_with('>'));
    names.push_back(to_right_.back() ? cell.substr(1) : cell);
  }
  widths_.assign(names.size(), 0);
  add(std::move(names));
}

void TextTable::add(std::vector<std::string> cells) {
  CHECK(cells.size() == widths_.size());
  for (size_t i = 0; i < cells.size(); ++i) widths_[i] = std::max(widths_[i], cells[i].size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::line(const std::vector<std::string>& cells, const char* open,
                            const char* between, const char* close) const {
  std::string text = open;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(widths_[i] - cells[i].size(), ' ');
    if (i > 0) text += between;
    text += to_right_[i] ? padding + cells[i] : cells[i] + padding;
  }
  text += close;
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

std::string TextTable::plain() const {
  std::string text;
  for (const auto& row : rows_) text += line(row, "", "  ", "");
  return text;
}

std::string TextTable::markdown() const {
  std::vector<std::string> rule;
  for (size_t i = 0; i < widths_.size(); ++i) {
    rule.emplace_back(std::max<size_t>(widths_[i], 2), '-');
    if (to_right_[i]) rule.back().back() = ':';
  }
  std::string text = line(rows_[0], "| ", " | ", " |");
  text += line(rule, "| ", " | ", " |");
  for (size_t i = 1; i < rows_.size(); ++i) text += line(rows_[i], "| ", " | ", " |");
  return text;
}

std::string with_commas(int64_t n) {
  std::string digits = std::to_string(n);
  for (int i = static_cast<int>(digits.size()) - 3; i > (n < 0 ? 1 : 0); i -= 3)
    digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

std::string fixed_digits(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

}  // namespace nibble::cli
