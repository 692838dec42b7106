// The one table of weight formats: what a weight is made of, wherever it lies.
#pragma once

#include <cstdint>
#include <string_view>

namespace nibble {

enum class Format : uint8_t {
  kF32,
  kBF16,
  kMxfp4,
  kMxfp8,
  kF16,
  kNvfp4,
  kFp8Row,
  kFp8Block,
  kInt4G32,
  kInt4G128
};

struct FormatRow {
  Format format;
  std::string_view name;
  int block_elems;          // elements along K that share a scale; 1 where there is none
  int code_bytes;           // bytes of codes per block
  int scale_bytes;          // bytes of scale per block; codes and scales are separate arrays
  bool row_scales = false;  // each row has a float32 of its own, in a third array
};

inline constexpr FormatRow kFormats[] = {
    {Format::kF32, "f32", 1, 4, 0},
    {Format::kBF16, "bf16", 1, 2, 0},
    {Format::kMxfp4, "mxfp4", 32, 16, 1},
    {Format::kMxfp8, "mxfp8", 32, 32, 1},
    {Format::kF16, "f16", 1, 2, 0},
    {Format::kNvfp4, "nvfp4", 16, 8, 1, true},
    {Format::kFp8Row, "fp8", 1, 1, 0, true},
    {Format::kFp8Block, "fp8_block", 128, 128, 4},
    {Format::kInt4G32, "int4_g32", 32, 16, 4},
    {Format::kInt4G128, "int4_g128", 128, 64, 4},
};

static_assert(kFormats[static_cast<int>(Format::kInt4G128)].format == Format::kInt4G128);

constexpr const FormatRow& format_row(Format format) { return kFormats[static_cast<int>(format)]; }
constexpr std::string_view format_name(Format format) { return format_row(format).name; }

// Bytes of `elems` elements, codes and scales of blocks together; elems is a multiple of the block.
constexpr int64_t format_bytes(Format format, int64_t elems) {
  const FormatRow& row = format_row(format);
  return elems / row.block_elems * (row.code_bytes + row.scale_bytes);
}

}  // namespace nibble
