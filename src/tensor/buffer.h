// Buffer: move-only owner of memory: zeroed host memory, or what another allocator made (pinned and
// device memory: cuda/memory.h). Arena: hands out views of one Buffer.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "tensor/tensor.h"

namespace nibble {

class Buffer {
 public:
  Buffer() = default;
  // Throws Error(kMemory) when the system refuses. Page-aligned; pages are touched on first use.
  explicit Buffer(int64_t bytes);
  // Owns `data` from now on; `release` gives it back.
  Buffer(void* data, int64_t bytes, void (*release)(void* data, int64_t bytes));
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  int64_t size_bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  void (*release_)(void* data, int64_t bytes) = nullptr;
};

class Arena {
 public:
  static constexpr int64_t kAlign = 256;  // what cudaMalloc gives, and four cache lines
  static constexpr int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  Arena() = default;
  explicit Arena(int64_t bytes) : buffer_(bytes) {}
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}

  // The next `shape` elements. Running past the end is a bug: sizes are planned before.
  Tensor take(DType dtype, std::initializer_list<int64_t> shape);
  void* data() const { return buffer_.data(); }
  int64_t used_bytes() const { return used_; }
  int64_t size_bytes() const { return buffer_.size_bytes(); }

 private:
  Buffer buffer_;
  int64_t used_ = 0;
};

}  // namespace nibble
