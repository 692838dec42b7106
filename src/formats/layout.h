// Layouts: the order in which the bytes of a weight matrix [N, K] lie in memory. Each is a pure
// permutation of what the format says row by row; a kernel names the one it reads, the loader makes
// it once. In every packed layout 16 consecutive rows are one range of bytes ("a group"), and
// groups follow one another; so do experts.
//
// kRows: as the format says, row by row; codes and scales are two arrays.
//
// kTiles16x64 (4 and 8 bits; scales of blocks lie within, there is no second array): a group is
// K/64 units, each 16 rows x 64 k: the A fragments of mma, a lane's in one or two 16-byte loads.
//   codes   4 bits, 512 bytes: lane l = 4g + p owns bytes 16l..16l+15, four words (32 bits,
//           little-endian): row g half 0 | row g+8 half 0 | row g half 1 | row g+8 half 1
//           (half: 32 k); nibble j of a word is k = 8j + 2p (j < 4), 8(j-4) + 2p + 1
//           (j >= 4), so its 16-bit halves hold neighbours: pairs (k, k + 1) of bf16
//           8 bits, 1,024 bytes: the same twice, of 32 k each, whose halves are 16 k; the bytes of
//           a word are k = 2p + 8, 2p, 2p + 9, 2p + 1
//   scales  behind them, of b blocks of 64 k: number (g * b + block) * 2 + (row >= 8), a byte of
//           MXFP4 and MXFP8 (b = 2) and NVFP4 (4), 4 bytes of FP8 (1) and INT4 (2, or 1 of groups
//           of 128). Scales of rows stay where they are
//
// kPanels16 (all of 4 and 8 bits; two arrays): for 4 bits the B tile of AMX int8 and the order
// of vpdpbusd at once, for 8 bits one vector of 16 rows for each k.
//   codes   4 bits: a group is K/32 times 256 bytes, each 16 rows x 32 k: byte 64i + 4n + b
//           (i < 4: line, n < 16: row, b < 4) holds k = 8i + b low and k = 8i + 4 + b high
//           8 bits: K/32 times 512 bytes: byte 16k + n holds k of row n
//   scales  for each block of K those of the 16 rows, one after the other (FP8 and INT4: 4 bytes
//           each, or none). Scales of rows stay where they are
#pragma once

#include <cstdint>
#include <string_view>

#include "formats/format.h"

namespace nibble {

enum class Layout : uint8_t { kRows, kTiles16x64, kPanels16 };

// Rows of a group of a packed layout.
inline constexpr int64_t kGroupRows = 16;

struct LayoutRow {
  Layout layout;
  std::string_view name;
  int col_multiple;    // K must be a multiple of it
  bool scales_within;  // no second array
};

inline constexpr LayoutRow kLayouts[] = {
    {Layout::kRows, "rows", 1, false},
    {Layout::kTiles16x64, "tiles16x64", 64, true},
    {Layout::kPanels16, "panels16", 32, false},
};

constexpr const LayoutRow& layout_row(Layout layout) { return kLayouts[static_cast<int>(layout)]; }
constexpr std::string_view layout_name(Layout layout) { return layout_row(layout).name; }

// Why a matrix of `rows` x `cols` cannot lie so; nullptr: it can.
const char* refuse_layout(Layout layout, Format format, int64_t rows, int64_t cols);

// A unit of kTiles16x64: bytes of codes, scales of a row, and bytes in all.
constexpr int64_t tile_code_bytes(Format format) {
  return kGroupRows * 64 * format_row(format).code_bytes / format_row(format).block_elems;
}
constexpr int64_t tile_scales(Format format) {
  const FormatRow& f = format_row(format);
  return f.scale_bytes == 0 ? 0 : f.block_elems < 64 ? 64 / f.block_elems : 1;
}
constexpr int64_t tile_bytes(Format format) {
  return tile_code_bytes(format) +
         kGroupRows * tile_scales(format) * format_row(format).scale_bytes;
}

// Bytes of one row in each of the two arrays: of packed layouts, a sixteenth of a group's.
constexpr int64_t row_code_bytes(Format format, Layout layout, int64_t cols) {
  const FormatRow& f = format_row(format);
  if (layout == Layout::kTiles16x64) return cols / 64 * tile_bytes(format) / kGroupRows;
  return cols * f.code_bytes / f.block_elems;
}
constexpr int64_t row_scale_bytes(Format format, Layout layout, int64_t cols) {
  const FormatRow& f = format_row(format);
  return layout_row(layout).scales_within
             ? 0
             : (cols + f.block_elems - 1) / f.block_elems * f.scale_bytes;
}

// The bytes of some rows, the first of them the first of a group.
struct RowBytes {
  uint8_t* codes = nullptr;
  uint8_t* scales = nullptr;    // nullptr where the layout has no second array
  float* row_scales = nullptr;  // nullptr where the format has none
};

struct ConstRowBytes {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
};

// From kRows to `layout`, `rows` rows (whole groups). Any range of groups can be packed by itself,
// by any thread.
void pack_rows(Format format, Layout layout, int64_t rows, int64_t cols, const ConstRowBytes& from,
               const RowBytes& to);

// Row `row` of packed rows back to kRows.
void unpack_row(Format format, Layout layout, int64_t row, int64_t cols, const ConstRowBytes& from,
                const RowBytes& to);

}  // namespace nibble
