// Scratch: hands out pieces of Ctx::scratch for the time of one op. Made without memory it only
// counts: an op that takes its pieces in a constructor states its need by the same code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"

namespace nibble::ops {

class Scratch {
 public:
  Scratch() = default;  // counts
  explicit Scratch(std::span<std::byte> memory) : base_(memory.data()), size_(memory.size()) {}

  template <typename T>
  T* take(int64_t n) {
    const int64_t at = used_;
    used_ += (n * static_cast<int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
    if (base_ == nullptr) return nullptr;
    CHECK(used_ <= static_cast<int64_t>(size_));
    return reinterpret_cast<T*>(base_ + at);
  }
  int64_t used_bytes() const { return used_; }

 private:
  static constexpr int64_t kAlign = 64;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
  int64_t used_ = 0;
};

}  // namespace nibble::ops
