// The order of E4M3 activations against the layout of the weights: what a lane multiplies with each
// other is of one column.
#include "ops/gpu_matmul/lane_order.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <vector>

#include "formats/layout.h"

namespace nibble::ops::gpu::sm12x {
namespace {

// A unit of which one row has a code in one column, and zeros else.
std::vector<uint8_t> unit_of(Format format, int64_t row, int64_t column) {
  const FormatRow& f = format_row(format);
  const int64_t row_bytes = 64 * f.code_bytes / f.block_elems;
  std::vector<uint8_t> codes(kGroupRows * row_bytes), unit(tile_bytes(format));
  std::vector<uint8_t> scales(kGroupRows * row_scale_bytes(format, Layout::kRows, 64));
  if (row_bytes == 32)
    codes[row * row_bytes + column / 2] = static_cast<uint8_t>(1 << 4 * (column % 2));
  else
    codes[row * row_bytes + column] = 1;
  pack_rows(format, Layout::kTiles16x64, kGroupRows, 64, {codes.data(), scales.data()},
            {unit.data(), nullptr, nullptr});
  return unit;
}

uint32_t word_at(const std::vector<uint8_t>& unit, int64_t at) {
  uint32_t word;
  std::memcpy(&word, unit.data() + at, sizeof(word));
  return word;
}

// Byte j of register 2 h + (row >= 8) of a lane's operand A of half b is not zero: as
// operands_sm12x.cuh makes them.
bool has_code(Format format, const std::vector<uint8_t>& unit, int lane, int b, int h, int j,
              int last) {
  if (tile_code_bytes(format) == 1024)
    return word_at(unit, 512 * b + 16 * lane + 4 * (2 * h + last)) >> 8 * j & 255;
  const uint32_t word = word_at(unit, 16 * lane + 4 * (2 * b + last));
  if (format == Format::kNvfp4) return word >> 4 * (4 * h + j) & 15;  // PRMT takes nibbles in order
  return codes_of_word(word, h) >> 8 * j & 255;
}

TEST(LaneOrder, ALaneMultipliesWhatIsOfOneColumn) {
  for (const Format format : {Format::kMxfp4, Format::kNvfp4, Format::kMxfp8, Format::kFp8Row}) {
    std::set<int> seen;
    for (int64_t row = 0; row < kGroupRows; ++row)
      for (int64_t column = 0; column < 64; ++column) {
        const std::vector<uint8_t> unit = unit_of(format, row, column);
        int found = 0;
        for (int lane = 0; lane < 32; ++lane)
          for (int place = 16 * (lane % 4), i = 0; i < 16; ++i, ++place)
            for (int last = 0; last < 2; ++last) {
              if (!has_code(format, unit, lane, i / 8, i / 4 % 2, i % 4, last)) continue;
              ++found;
              EXPECT_EQ(lane / 4 + 8 * last, row);
              EXPECT_EQ(column_of_place(format, place), column) << format_name(format);
              seen.insert(place);
            }
        EXPECT_EQ(found, 1) << format_name(format) << " row " << row << " column " << column;
      }
    EXPECT_EQ(seen.size(), 64u);
  }
}

// The words of operand A of a lane's row (`last`: that of 8 rows on), of both halves, as
// operands_sm12x.cuh makes them: of NVFP4 lanes p and p ^ 2 exchange bytes.
std::array<uint32_t, 2> words_of_row(Format format, const std::vector<uint8_t>& unit, int lane,
                                     int last) {
  const auto word = [&](int of, int b) { return word_at(unit, 16 * of + 4 * (2 * b + last)); };
  if (format == Format::kMxfp4) return {word(lane, 0), word(lane, 1)};
  const int shift = lane & 2 ? 8 : 0;  // of the bytes that this lane takes
  const auto taken = [&](int of, int b) {
    const uint32_t w = word(of, b) >> shift;
    return (w & 0xff) | (w >> 8 & 0xff00);
  };
  std::array<uint32_t, 2> words;
  for (int b = 0; b < 2; ++b) words[b] = taken(lane, b) | taken(lane ^ 2, b) << 16;
  return words;
}

TEST(LaneOrder, ANibbleIsOfOneColumnAndItsBlock) {
  for (const Format format : {Format::kMxfp4, Format::kNvfp4}) {
    const int64_t block = format_row(format).block_elems;
    for (int64_t row = 0; row < kGroupRows; ++row)
      for (int64_t column = 0; column < 64; ++column) {
        const std::vector<uint8_t> unit = unit_of(format, row, column);
        int found = 0;
        for (int lane = 0; lane < 32; ++lane)
          for (int last = 0; last < 2; ++last)
            for (int b = 0; b < 2; ++b)
              for (int n = 0; n < 8; ++n) {
                if ((words_of_row(format, unit, lane, last)[b] >> 4 * n & 15) == 0) continue;
                ++found;
                EXPECT_EQ(lane / 4 + 8 * last, row);
                EXPECT_EQ(column_of_nibble(format, lane % 4, b, n), column) << format_name(format);
                // The instruction's k, whose scale is that of its 32 or 16.
                EXPECT_EQ((32 * b + 8 * (lane % 4) + n) / block, column / block);
              }
        EXPECT_EQ(found, 1) << format_name(format) << " row " << row << " column " << column;
      }
  }
}

}  // namespace
}  // namespace nibble::ops::gpu::sm12x
