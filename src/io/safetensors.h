// The safetensors file format: u64 little-endian header length n, n bytes of JSON, tensor data.
//   {"__metadata__": {text: text}, "NAME": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0,
//   12]}}
// Offsets count from the end of the header; data is row-major, little-endian, without gaps.
// Source: the specification in the safetensors repository's README.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace nibble {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  int file = 0;        // which file of its checkpoint
  int64_t offset = 0;  // of the first byte, in that file
};

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Length of the header that the first 8 bytes of a file announce, checked against the file's size.
// Throws Error(kCheckpoint) naming `file`; recognises a Git LFS pointer by its first bytes.
int64_t safetensors_header_bytes(std::span<const std::byte, 8> start, int64_t file_bytes,
                                 const std::string& file);

// Tensors of a header (without the 8 length bytes), in order of their offsets. Throws
// Error(kCheckpoint) naming file and tensor for anything that the format does not allow: bad JSON
// or UTF-8, duplicate names, unknown dtypes, negative or overflowing shapes, more than 8
// dimensions, ranges that overlap, leave gaps, disagree with the shape or end anywhere but at the
// file's end.
std::vector<TensorInfo> parse_safetensors_header(std::string_view header, int64_t file_bytes,
                                                 const std::string& file);

// model.safetensors.index.json: which shard has which tensor.
struct SafetensorsIndex {
  std::map<std::string, std::string> file_of;  // tensor -> file name, without any directory
  std::optional<int64_t> total_bytes;          // metadata.total_size
};

// Throws Error(kCheckpoint) for bad JSON, a tensor named twice, or a shard that is not a plain file
// name (an index must not lead out of its directory).
SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& file);

// "BF16" for DType::kBF16, as headers write it.
std::string_view safetensors_dtype_name(DType dtype);

// A tensor to be written: name, dtype, shape and data of the right length.
struct TensorData {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// Writes one file, tensors in the order given. Throws Error(kCheckpoint) where writing fails.
void write_safetensors(const std::filesystem::path& file, std::span<const TensorData> tensors);

}  // namespace nibble
