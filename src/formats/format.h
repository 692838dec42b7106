// The one table of weight formats: what a weight is made of, wherever it lies.
#pragma once

#include <cstdint>
#include <string_view>

namespace nibble {

enum class Format : uint8_t { kF32, kBF16, kMxfp4, kMxfp8 };

struct FormatRow {
  Format format;
  std::string_view name;
  int block_elems;  // elements along K that share a scale; 1 where there is none
  int code_bytes;   // bytes of codes per block
  int scale_bytes;  // bytes of scale per block; codes and scales are separate arrays
};

inline constexpr FormatRow kFormats[] = {
    {Format::kF32, "f32", 1, 4, 0},
    {Format::kBF16, "bf16", 1, 2, 0},
    {Format::kMxfp4, "mxfp4", 32, 16, 1},
    {Format::kMxfp8, "mxfp8", 32, 32, 1},
};

constexpr const FormatRow& format_row(Format format) { return kFormats[static_cast<int>(format)]; }
constexpr std::string_view format_name(Format format) { return format_row(format).name; }

// Bytes of `elems` elements, codes and scales together; elems is a multiple of the block.
constexpr int64_t format_bytes(Format format, int64_t elems) {
  const FormatRow& row = format_row(format);
  return elems / row.block_elems * (row.code_bytes + row.scale_bytes);
}

}  // namespace nibble
