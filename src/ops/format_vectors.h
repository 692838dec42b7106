// For tests: the vectors of tests/data/format_vectors.txt (tools/write_format_vectors.py), one a
// line.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "ops/weight.h"

namespace nibble::ops {

// A row of some format, and what it decodes to.
struct FormatVector {
  std::string name;
  std::vector<uint8_t> codes, scales;
  std::vector<float> row_scale, values;

  explicit FormatVector(const std::string& line) {
    std::istringstream words(line);
    std::string codes_text, scales_text, row_text, values_text;
    words >> name >> codes_text >> scales_text >> row_text >> values_text;
    codes = from_hex(codes_text), scales = from_hex(scales_text);
    row_scale = floats_of(from_hex(row_text)), values = floats_of(from_hex(values_text));
    const Weight w = weight();
    EXPECT_EQ(std::ssize(codes), w.row_code_bytes()) << line;
    EXPECT_EQ(std::ssize(scales), w.row_scale_bytes()) << line;
  }
  // A view.
  Weight weight() const {
    const auto* format =
        std::ranges::find_if(kFormats, [&](const FormatRow& f) { return f.name == name; });
    CHECK(format != std::end(kFormats));
    Weight w{.format = format->format, .rows = 1, .cols = std::ssize(values)};
    w.codes = codes.data();
    w.scales = scales.data();
    if (format->row_scales) w.row_scales = row_scale.data();
    return w;
  }

 private:
  static std::vector<uint8_t> from_hex(const std::string& text) {
    std::vector<uint8_t> bytes;
    for (size_t i = 0; text != "-" && i + 1 < text.size(); i += 2)
      bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
    return bytes;
  }
  static std::vector<float> floats_of(const std::vector<uint8_t>& bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

}  // namespace nibble::ops
