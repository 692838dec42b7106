// The emulator's own content of a CUtensorMap, of two dimensions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>

namespace nibble::emulated {

struct TensorMap {
  uint64_t data, cols, rows, pitch_bytes;
  uint32_t box_cols, box_rows, element_bytes;
  uint32_t swizzle_bytes;  // 0, 32, 64, 128

  uint32_t box_bytes() const { return box_cols * box_rows * element_bytes; }

  // The box whose first element is (x, y) to shared memory; what lies beyond the matrix is 0. The
  // swizzle is of addresses: bits 4.. by the bits 7.. above them.
  template <typename MemoryAt>
  void copy(std::byte* to, uint32_t address, int32_t x, int32_t y,
            const MemoryAt& memory_at) const {
    const uint32_t row_bytes = box_cols * element_bytes;
    const uint32_t mask = swizzle_bytes == 0 ? 0 : swizzle_bytes / 16 - 1;
    for (uint32_t r = 0; r < box_rows; ++r)
      for (uint32_t c = 0; c < box_cols; ++c) {
        const int64_t row = int64_t{y} + r, col = int64_t{x} + c;
        const uint32_t at = address + r * row_bytes + c * element_bytes;
        std::byte* const place = to + ((at ^ ((at >> 7 & mask) << 4)) - address);
        const bool is_inside = row >= 0 && row < static_cast<int64_t>(rows) && col >= 0 &&
                               col < static_cast<int64_t>(cols);
        if (is_inside)
          std::memcpy(place,
                      memory_at(data + static_cast<uint64_t>(row) * pitch_bytes +
                                    static_cast<uint64_t>(col) * element_bytes,
                                element_bytes),
                      element_bytes);
        else
          std::memset(place, 0, element_bytes);
      }
  }

  // What of that box lies inside the matrix, by pieces of up to 16 bytes: take(its place behind the
  // box's in shared memory, its address in the matrix, bytes).
  template <typename Take>
  void for_pieces(uint32_t address, int32_t x, int32_t y, const Take& take) const {
    const uint32_t row_bytes = box_cols * element_bytes, of_piece = 16 / element_bytes;
    const uint32_t mask = swizzle_bytes == 0 ? 0 : swizzle_bytes / 16 - 1;
    for (uint32_t r = 0; r < box_rows; ++r)
      for (uint32_t c = 0; c < box_cols; c += of_piece) {
        const int64_t row = int64_t{y} + r, col = int64_t{x} + c;
        const int64_t inside = std::min<int64_t>(of_piece, static_cast<int64_t>(cols) - col);
        if (row < 0 || row >= static_cast<int64_t>(rows) || col < 0 || inside <= 0) continue;
        const uint32_t at = address + r * row_bytes + c * element_bytes;
        take((at ^ ((at >> 7 & mask) << 4)) - address,
             data + static_cast<uint64_t>(row) * pitch_bytes +
                 static_cast<uint64_t>(col) * element_bytes,
             static_cast<uint32_t>(inside) * element_bytes);
      }
  }
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace nibble::emulated
