#include "formats/layout.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace nibble {
namespace {

constexpr int64_t kBlockBytes = 16;  // of 4-bit codes: 32 elements
constexpr int64_t kTileHalfBytes = 512;

constexpr int64_t kPanelBlockBytes = kGroupRows * kBlockBytes;
constexpr int64_t kLines = 4;  // of a panel's block

template <typename T>
T load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
void store(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

// Offset within 512 bytes of codes of row r's word of lane p, and that half of k; and the number of
// a unit's scale of row r.
int64_t tile_word(int64_t r, int64_t half, int64_t p) {
  return 16 * (4 * (r % 8) + p) + 4 * (2 * half + r / 8);
}
int64_t tile_scale(int64_t r, int64_t block, int64_t blocks) {
  return (r % 8 * blocks + block) * 2 + r / 8;
}

// Vectors of the compiler's: SSE2 and NEON have these shuffles as they are.
using Bytes = uint8_t __attribute__((vector_size(16)));
using Halves = uint16_t __attribute__((vector_size(16)));
using Words = uint32_t __attribute__((vector_size(16)));
using Longs = uint64_t __attribute__((vector_size(16)));

Words first_of_both(Words a, Words b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
Words last_of_both(Words a, Words b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
Longs first_of_both(Longs a, Longs b) { return __builtin_shufflevector(a, b, 0, 2); }
Longs last_of_both(Longs a, Longs b) { return __builtin_shufflevector(a, b, 1, 3); }

// The words of lanes 0..3 of a block of 16 code bytes: byte 4j + p holds k = 8j + 2p and the next,
// which become nibbles j and 4 + j of word p.
Words words_of_lanes(const uint8_t* block) {
  const auto codes = load<Longs>(block);
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
  const Longs even = codes & kLow, odd = codes >> 4 & kLow;
  // Bytes p of the first and of the third word: nibbles 2i and 2i + 1 of the four.
  const auto evens = reinterpret_cast<Words>(even | even >> 28);
  const auto odds = reinterpret_cast<Words>(odd | odd >> 28);
  const auto low = reinterpret_cast<Bytes>(first_of_both(evens, odds));
  const auto high = reinterpret_cast<Bytes>(last_of_both(evens, odds));
  const Bytes pairs =
      __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const auto last = reinterpret_cast<Longs>(pairs);
  const auto first_pairs = reinterpret_cast<Halves>(pairs);
  const auto last_pairs = reinterpret_cast<Halves>(last_of_both(last, last));
  return reinterpret_cast<Words>(
      __builtin_shufflevector(first_pairs, last_pairs, 0, 8, 1, 9, 2, 10, 3, 11));
}

// The words of lanes 0..3 of 16 code bytes of 8 bits: their bytes are k = 2p + 8, 2p and the next.
Words words_of_byte_lanes(const uint8_t* from) {
  const auto k = load<Bytes>(from);
  return reinterpret_cast<Words>(
      __builtin_shufflevector(k, k, 8, 0, 9, 1, 10, 2, 11, 3, 12, 4, 13, 5, 14, 6, 15, 7));
}

// 512 bytes of codes, rows r and r + 8: words of each's halves, which lie 16 bytes apart.
void store_lanes(uint8_t* codes, int64_t r, Words w0, Words w8, Words next0, Words next8) {
  // Lane p: word p of each of the four.
  const auto a0 = reinterpret_cast<Longs>(first_of_both(w0, w8));
  const auto a1 = reinterpret_cast<Longs>(last_of_both(w0, w8));
  const auto b0 = reinterpret_cast<Longs>(first_of_both(next0, next8));
  const auto b1 = reinterpret_cast<Longs>(last_of_both(next0, next8));
  uint8_t* const lanes = codes + tile_word(r, 0, 0);
  store(lanes, first_of_both(a0, b0));
  store(lanes + 16, last_of_both(a0, b0));
  store(lanes + 32, first_of_both(a1, b1));
  store(lanes + 48, last_of_both(a1, b1));
}

// What is known of a unit when it is packed: constants, but for rare formats.
struct TileUnit {
  int64_t code_bytes, bytes, scales, scale_bytes;
  int64_t block_elems;

  // Where a row's scale `i` of unit u lies among the row's.
  constexpr int64_t scale_at(int64_t u, int64_t i) const {
    return (u * 64 / block_elems + i) * scale_bytes;
  }
};
constexpr TileUnit tile_unit(Format format) {
  const FormatRow& f = format_row(format);
  return {tile_code_bytes(format), tile_bytes(format), tile_scales(format), f.scale_bytes,
          f.block_elems};
}

template <Format kFormat>
void pack_tiles(int64_t cols, const uint8_t* codes, const uint8_t* scales, uint8_t* to) {
  constexpr TileUnit kUnit = tile_unit(kFormat);
  constexpr auto kWords = kUnit.code_bytes == 512 ? words_of_lanes : words_of_byte_lanes;
  const int64_t units = cols / 64, row_bytes = units * kUnit.code_bytes / kGroupRows;
  const int64_t row_scales = row_scale_bytes(kFormat, Layout::kRows, cols);
  for (int64_t r = 0; r < kGroupRows / 2; ++r) {
    const uint8_t* from = codes + r * row_bytes;
    for (int64_t u = 0; u < units; ++u) {
      uint8_t* unit = to + u * kUnit.bytes;
      for (int64_t at = 0; at < kUnit.code_bytes; at += kTileHalfBytes, from += 2 * kBlockBytes) {
        const uint8_t* last = from + 8 * row_bytes;
        store_lanes(unit + at, r, kWords(from), kWords(last), kWords(from + kBlockBytes),
                    kWords(last + kBlockBytes));
      }
      for (int64_t b = 0; b < kUnit.scales; ++b)
        for (const int64_t row : {r, r + 8})
          std::memcpy(
              unit + kUnit.code_bytes + tile_scale(row, b, kUnit.scales) * kUnit.scale_bytes,
              scales + row * row_scales + kUnit.scale_at(u, b), kUnit.scale_bytes);
    }
  }
}

void unpack_tiles(Format format, int64_t r, int64_t cols, const uint8_t* from, const RowBytes& to) {
  const TileUnit unit = tile_unit(format);
  const bool has_bytes = unit.code_bytes > kTileHalfBytes;
  for (int64_t u = 0; u < cols / 64; ++u, from += unit.bytes) {
    uint8_t* out = to.codes + u * unit.code_bytes / kGroupRows;
    for (int64_t at = 0; at < unit.code_bytes; at += kTileHalfBytes)
      for (int64_t half = 0; half < 2; ++half, out += kBlockBytes)
        for (int64_t p = 0; p < 4; ++p) {
          const auto word = load<uint32_t>(from + at + tile_word(r, half, p));
          for (int64_t j = 0; j < 4; ++j) {
            const uint32_t pair = word >> (4 * j);
            if (has_bytes)
              out[2 * p + (j % 2 == 0 ? 8 : 0) + j / 2] = static_cast<uint8_t>(word >> (8 * j));
            else
              out[4 * j + p] = static_cast<uint8_t>((pair & 15) | (pair >> 12 & 0xf0));
          }
        }
    for (int64_t b = 0; b < unit.scales; ++b)
      std::memcpy(to.scales + unit.scale_at(u, b),
                  from + unit.code_bytes + tile_scale(r, b, unit.scales) * unit.scale_bytes,
                  unit.scale_bytes);
  }
}

auto* tile_packer(Format format) {
  switch (format) {
    case Format::kNvfp4:
      return pack_tiles<Format::kNvfp4>;
    case Format::kMxfp8:
      return pack_tiles<Format::kMxfp8>;
    case Format::kFp8Row:
      return pack_tiles<Format::kFp8Row>;
    case Format::kFp8Block:
      return pack_tiles<Format::kFp8Block>;
    case Format::kInt4G32:
      return pack_tiles<Format::kInt4G32>;
    case Format::kInt4G128:
      return pack_tiles<Format::kInt4G128>;
    default:
      return pack_tiles<Format::kMxfp4>;
  }
}

// Four nibbles, one to each byte.
uint32_t spread(uint32_t x) {
  x = (x | x << 8) & 0x00ff00ffu;
  return (x | x << 4) & 0x0f0f0f0fu;
}
uint32_t gather(uint32_t x) {
  x &= 0x0f0f0f0fu;
  x = (x | x >> 4) & 0x00ff00ffu;
  return (x | x >> 8) & 0xffffu;
}

// Codes of 4 bits; other formats of kPanels16 have 8.
bool has_nibbles(Format format) {
  return format == Format::kMxfp4 || format == Format::kNvfp4 || format == Format::kInt4G32 ||
         format == Format::kInt4G128;
}

void pack_nibble_panel(int64_t cols, const uint8_t* codes, uint8_t* to) {
  const int64_t blocks = cols / 32;
  for (int64_t r = 0; r < kGroupRows; ++r) {
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* from = codes + (r * blocks + b) * kBlockBytes;
      uint8_t* out = to + b * kPanelBlockBytes + 4 * r;
      for (int64_t i = 0; i < kLines; ++i) {
        const auto nibbles = load<uint32_t>(from + 4 * i);
        store(out + 64 * i, spread(nibbles & 0xffff) | spread(nibbles >> 16) << 4);
      }
    }
  }
}

void unpack_nibble_panel(int64_t r, int64_t cols, const uint8_t* codes, uint8_t* to) {
  for (int64_t b = 0; b < cols / 32; ++b) {
    const uint8_t* from = codes + b * kPanelBlockBytes + 4 * r;
    for (int64_t i = 0; i < kLines; ++i) {
      const auto bytes = load<uint32_t>(from + 64 * i);
      store(to + b * kBlockBytes + 4 * i, gather(bytes) | gather(bytes >> 4) << 16);
    }
  }
}

void pack_byte_panel(int64_t cols, const uint8_t* codes, uint8_t* to) {
  constexpr int64_t kChunk = 64;  // columns: reads and writes stay in L1
  for (int64_t k0 = 0; k0 < cols; k0 += kChunk)
    for (int64_t r = 0; r < kGroupRows; ++r)
      for (int64_t k = k0; k < std::min(cols, k0 + kChunk); ++k)
        to[k * kGroupRows + r] = codes[r * cols + k];
}

// `bytes` of scales a row, `size` each.
void pack_panel_scales(int64_t bytes, int64_t size, const uint8_t* scales, uint8_t* to) {
  for (int64_t r = 0; r < kGroupRows; ++r)
    for (int64_t i = 0; i < bytes; i += size)
      std::memcpy(to + i * kGroupRows + r * size, scales + r * bytes + i, size);
}

}  // namespace

const char* refuse_layout(Layout layout, Format format, int64_t rows, int64_t cols) {
  if (layout == Layout::kRows) return nullptr;
  const bool has_bytes =
      format == Format::kMxfp8 || format == Format::kFp8Row || format == Format::kFp8Block;
  if (layout == Layout::kTiles16x64 && !has_nibbles(format) && !has_bytes)
    return "tiles16x64 is for weights of 4 and 8 bits";
  if (layout == Layout::kPanels16 && !has_nibbles(format) && !has_bytes)
    return "panels16 is for weights of 4 and 8 bits";
  if (rows % kGroupRows != 0) return "its rows are not a multiple of 16";
  if (cols % layout_row(layout).col_multiple != 0)
    return layout == Layout::kTiles16x64 ? "its columns are not a multiple of 64"
                                         : "its columns are not a multiple of 32";
  return nullptr;
}

void pack_rows(Format format, Layout layout, int64_t rows, int64_t cols, const ConstRowBytes& from,
               const RowBytes& to) {
  CHECK(layout != Layout::kRows && refuse_layout(layout, format, rows, cols) == nullptr);
  const int64_t code_bytes = row_code_bytes(format, Layout::kRows, cols);
  const int64_t scale_bytes = row_scale_bytes(format, Layout::kRows, cols);
  for (int64_t r = 0; r < rows; r += kGroupRows) {
    const uint8_t* codes = from.codes + r * code_bytes;
    const uint8_t* scales = from.scales + r * scale_bytes;
    uint8_t* group = to.codes + r * row_code_bytes(format, layout, cols);
    if (layout == Layout::kTiles16x64) {
      tile_packer(format)(cols, codes, scales, group);
      continue;
    }
    if (has_nibbles(format))
      pack_nibble_panel(cols, codes, group);
    else
      pack_byte_panel(cols, codes, group);
    pack_panel_scales(scale_bytes, format_row(format).scale_bytes, scales,
                      to.scales + r * scale_bytes);
  }
}

void unpack_row(Format format, Layout layout, int64_t row, int64_t cols, const ConstRowBytes& from,
                const RowBytes& to) {
  CHECK(layout != Layout::kRows);
  const int64_t first = row / kGroupRows * kGroupRows, r = row - first;
  const uint8_t* group = from.codes + first * row_code_bytes(format, layout, cols);
  if (layout == Layout::kTiles16x64) return unpack_tiles(format, r, cols, group, to);
  const int64_t bytes = row_scale_bytes(format, layout, cols);
  const int64_t size = format_row(format).scale_bytes;
  const uint8_t* scales = from.scales + first * bytes + r * size;
  for (int64_t i = 0; i < bytes; i += size)
    std::memcpy(to.scales + i, scales + i * kGroupRows, size);
  if (has_nibbles(format))
    unpack_nibble_panel(r, cols, group, to.codes);
  else
    for (int64_t k = 0; k < cols; ++k) to.codes[k] = group[k * kGroupRows + r];
}

}  // namespace nibble
