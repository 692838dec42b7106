#include "formats/layout.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace nibble {
namespace {

struct Packing {
  Format format;
  Layout layout;
};
constexpr Packing kPackings[] = {
    {Format::kMxfp4, Layout::kTiles16x64},   {Format::kNvfp4, Layout::kTiles16x64},
    {Format::kMxfp4, Layout::kPanels16},     {Format::kInt4G32, Layout::kPanels16},
    {Format::kNvfp4, Layout::kPanels16},     {Format::kMxfp8, Layout::kPanels16},
    {Format::kFp8Row, Layout::kPanels16},    {Format::kFp8Block, Layout::kPanels16},
    {Format::kFp8Row, Layout::kTiles16x64},  {Format::kFp8Block, Layout::kTiles16x64},
    {Format::kInt4G32, Layout::kTiles16x64}, {Format::kInt4G128, Layout::kTiles16x64},
    {Format::kMxfp8, Layout::kTiles16x64}};

struct Matrix {
  Matrix(Format format, Layout layout, int64_t rows, int64_t cols)
      : codes(rows * row_code_bytes(format, layout, cols)),
        scales(rows * row_scale_bytes(format, layout, cols)) {}
  ConstRowBytes view() const { return {codes.data(), scales.data()}; }
  RowBytes at(int64_t code, int64_t scale) { return {codes.data() + code, scales.data() + scale}; }
  std::vector<uint8_t> codes, scales;
};

Matrix random_rows(Format format, int64_t rows, int64_t cols) {
  std::mt19937 random(7);
  Matrix m(format, Layout::kRows, rows, cols);
  for (uint8_t& b : m.codes) b = static_cast<uint8_t>(random() >> 24);
  for (uint8_t& b : m.scales) b = static_cast<uint8_t>(random() >> 24);
  return m;
}

// Code of (row, k) and scale of (row, block) of a matrix in kRows.
int code_at(const Matrix& m, int64_t cols, int64_t row, int64_t k) {
  return m.codes[row * cols / 2 + k / 2] >> (4 * (k % 2)) & 15;
}

TEST(Layout, TableIsInEnumOrder) {
  int index = 0;
  for (const LayoutRow& row : kLayouts) EXPECT_EQ(static_cast<int>(row.layout), index++);
}

TEST(Layout, UnpackGivesBackEveryRow) {
  for (const auto& [format, layout] : kPackings) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{16, 64}, {48, 192}, {32, 2880}}) {
      const Matrix from = random_rows(format, rows, cols);
      Matrix packed(format, layout, rows, cols);
      pack_rows(format, layout, rows, cols, from.view(), packed.at(0, 0));
      Matrix back(format, Layout::kRows, rows, cols);
      for (int64_t r = 0; r < rows; ++r)
        unpack_row(format, layout, r, cols, packed.view(),
                   back.at(r * row_code_bytes(format, Layout::kRows, cols),
                           r * row_scale_bytes(format, Layout::kRows, cols)));
      EXPECT_EQ(back.codes, from.codes) << layout_name(layout) << " " << format_name(format);
      EXPECT_EQ(back.scales, from.scales) << layout_name(layout) << " " << format_name(format);
    }
  }
}

// A range of groups lies where it would lie if all were packed at once.
TEST(Layout, GroupsCanBePackedOneByOne) {
  constexpr int64_t kRows = 48, kCols = 128;
  for (const auto& [format, layout] : kPackings) {
    const Matrix from = random_rows(format, kRows, kCols);
    Matrix whole(format, layout, kRows, kCols), parts(format, layout, kRows, kCols);
    pack_rows(format, layout, kRows, kCols, from.view(), whole.at(0, 0));
    for (const int64_t r : {32, 0, 16})
      pack_rows(format, layout, 16, kCols,
                {from.codes.data() + r * row_code_bytes(format, Layout::kRows, kCols),
                 from.scales.data() + r * row_scale_bytes(format, Layout::kRows, kCols)},
                parts.at(r * row_code_bytes(format, layout, kCols),
                         r * row_scale_bytes(format, layout, kCols)));
    EXPECT_EQ(whole.codes, parts.codes);
    EXPECT_EQ(whole.scales, parts.scales);
  }
}

// A code of a unit of kTiles16x64: which lane of mma holds it, and what the header draws there.
int tile_code_at(const uint8_t* unit, bool has_bytes, int64_t row, int64_t k) {
  const int64_t g = row % 8, k_of_half = has_bytes ? 16 : 32, half = k / k_of_half;
  const int64_t j = k % k_of_half / 8, p = k % 8 / 2, is_odd = k % 2;
  const int64_t word = half / 2 * 512 + 16 * (4 * g + p) + 4 * (half % 2 * 2 + row / 8);
  if (has_bytes) return unit[word + 2 * is_odd + (j == 0)];
  const int64_t nibble = 4 * is_odd + j;
  return unit[word + nibble / 2] >> (4 * (nibble % 2)) & 15;
}

void check_tiles(Format format, int64_t unit_bytes) {
  constexpr int64_t kRows = 32, kCols = 192;  // one block of 128, and half of one
  const Matrix from = random_rows(format, kRows, kCols);
  Matrix packed(format, Layout::kTiles16x64, kRows, kCols);
  ASSERT_EQ(std::ssize(packed.codes), 2 * 3 * unit_bytes);
  ASSERT_TRUE(packed.scales.empty());
  pack_rows(format, Layout::kTiles16x64, kRows, kCols, from.view(), packed.at(0, 0));
  const FormatRow& f = format_row(format);
  const bool has_bytes = f.code_bytes == f.block_elems;
  const int64_t size = f.scale_bytes, blocks = size == 0 ? 0 : std::max(1, 64 / f.block_elems);
  const int64_t row_scales = row_scale_bytes(format, Layout::kRows, kCols);
  for (int64_t row = 0; row < kRows; ++row)
    for (int64_t unit = 0; unit < 3; ++unit) {
      const uint8_t* bytes = packed.codes.data() + (row / 16 * 3 + unit) * unit_bytes;
      for (int64_t k = 0; k < 64; ++k)
        ASSERT_EQ(tile_code_at(bytes, has_bytes, row % 16, k),
                  has_bytes ? from.codes[row * kCols + unit * 64 + k]
                            : code_at(from, kCols, row, unit * 64 + k))
            << format_name(format) << " row " << row << " k " << unit * 64 + k;
      const int64_t g = row % 8, is_last = row % 16 / 8;
      for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < size; ++i)
          ASSERT_EQ(
              bytes[(has_bytes ? 1024 : 512) + ((g * blocks + block) * 2 + is_last) * size + i],
              from.scales[row * row_scales + (unit * 64 / f.block_elems + block) * size + i])
              << format_name(format) << " row " << row;
    }
}
TEST(Layout, TilesAreTheFragmentsOfMma) {
  check_tiles(Format::kMxfp4, 544);
  check_tiles(Format::kNvfp4, 576);
  check_tiles(Format::kMxfp8, 1056);
  check_tiles(Format::kFp8Row, 1024);
  check_tiles(Format::kFp8Block, 1088);
  check_tiles(Format::kInt4G32, 640);
  check_tiles(Format::kInt4G128, 576);
}

// Those of a block of 16 rows lie together, block after block.
void expect_scales_of_panels(Format format, int64_t rows, int64_t cols, const Matrix& from,
                             const Matrix& packed) {
  ASSERT_EQ(packed.scales.size(), from.scales.size());
  const int64_t bytes = row_scale_bytes(format, Layout::kRows, cols);
  const int64_t size = format_row(format).scale_bytes;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < bytes; ++i)
      ASSERT_EQ(
          packed.scales[row / 16 * 16 * bytes + i / size * 16 * size + row % 16 * size + i % size],
          from.scales[row * bytes + i])
          << format_name(format) << " row " << row << " byte " << i;
}

TEST(Layout, PanelsAreTheTilesOfAmx) {
  constexpr int64_t kRows = 32, kCols = 96;
  for (const Format format : {Format::kMxfp4, Format::kNvfp4, Format::kInt4G32}) {
    const Matrix from = random_rows(format, kRows, kCols);
    Matrix packed(format, Layout::kPanels16, kRows, kCols);
    ASSERT_EQ(packed.codes.size(), from.codes.size());
    pack_rows(format, Layout::kPanels16, kRows, kCols, from.view(), packed.at(0, 0));
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t k = 0; k < kCols; ++k) {
        const int64_t block = row / 16 * (kCols / 32) + k / 32;
        const int64_t i = k % 32 / 8, b = k % 4, high = k % 8 / 4;
        const int byte = packed.codes[block * 256 + 64 * i + 4 * (row % 16) + b];
        ASSERT_EQ(byte >> (4 * high) & 15, code_at(from, kCols, row, k)) << row << " " << k;
      }
    expect_scales_of_panels(format, kRows, kCols, from, packed);
  }
}

TEST(Layout, PanelsOf8BitsHoldAVectorOfRowsForEachK) {
  constexpr int64_t kRows = 32, kCols = 160;  // one block of 128, and a part of one
  for (const Format format : {Format::kMxfp8, Format::kFp8Row, Format::kFp8Block}) {
    const Matrix from = random_rows(format, kRows, kCols);
    Matrix packed(format, Layout::kPanels16, kRows, kCols);
    pack_rows(format, Layout::kPanels16, kRows, kCols, from.view(), packed.at(0, 0));
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t k = 0; k < kCols; ++k) {
        const int64_t block = row / 16 * (kCols / 32) + k / 32;
        ASSERT_EQ(packed.codes[block * 512 + k % 32 * 16 + row % 16], from.codes[row * kCols + k]);
      }
    expect_scales_of_panels(format, kRows, kCols, from, packed);
  }
}

TEST(Layout, RefusesWhatDoesNotFit) {
  for (const auto& [format, layout] : kPackings) {
    EXPECT_EQ(refuse_layout(layout, format, 2880, 2880), nullptr);
    EXPECT_STREQ(refuse_layout(layout, format, 2888, 2880), "its rows are not a multiple of 16");
    EXPECT_NE(refuse_layout(layout, Format::kBF16, 2880, 2880), nullptr);
  }
  EXPECT_STREQ(refuse_layout(Layout::kTiles16x64, Format::kMxfp4, 16, 96),
               "its columns are not a multiple of 64");
  EXPECT_EQ(refuse_layout(Layout::kPanels16, Format::kMxfp4, 16, 96), nullptr);
  EXPECT_EQ(refuse_layout(Layout::kRows, Format::kBF16, 3, 5), nullptr);
}

}  // namespace
}  // namespace nibble
