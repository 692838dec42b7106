// Buffer: move-only owner of zeroed host memory. Arena: hands out views of one Buffer.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "tensor/tensor.h"

namespace nibble {

class Buffer {
 public:
  Buffer() = default;
  // Throws Error(kMemory) when the system refuses. Page-aligned; pages are touched on first use.
  explicit Buffer(int64_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  int64_t size_bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

class Arena {
 public:
  static constexpr int64_t kAlign = 64;
  static constexpr int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  Arena() = default;
  explicit Arena(int64_t bytes) : buffer_(bytes) {}

  // The next `shape` elements. Running past the end is a bug: sizes are planned before.
  Tensor take(DType dtype, std::initializer_list<int64_t> shape);
  int64_t used_bytes() const { return used_; }
  int64_t size_bytes() const { return buffer_.size_bytes(); }

 private:
  Buffer buffer_;
  int64_t used_ = 0;
};

}  // namespace nibble
