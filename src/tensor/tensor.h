// Tensor: a view of elements that someone else owns. Trivially copyable, row-major, contiguous.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "base/check.h"
#include "tensor/dtype.h"

namespace nibble {

// Whether C++ type T reads elements of dtype t; bf16 and f16 are stored as uint16_t.
template <typename T>
constexpr bool holds(DType t) {
  if constexpr (std::is_same_v<T, float>) return t == DType::kF32;
  if constexpr (std::is_same_v<T, double>) return t == DType::kF64;
  if constexpr (std::is_same_v<T, uint16_t>) return t == DType::kBF16 || t == DType::kF16;
  if constexpr (std::is_same_v<T, int32_t>) return t == DType::kI32;
  if constexpr (std::is_same_v<T, int64_t>) return t == DType::kI64;
  if constexpr (std::is_same_v<T, uint8_t>) return dtype_bytes(t) == 1;
  return false;
}

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape{};

  int64_t dim(int i) const { return CHECK(i < rank), shape[i]; }
  int64_t num_elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t size_bytes() const { return num_elements() * dtype_bytes(dtype); }

  template <typename T>
  T* as() const {
    CHECK(holds<std::remove_const_t<T>>(dtype));
    return static_cast<T*>(data);
  }
};

inline Tensor make_tensor(void* data, DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t{.data = data, .dtype = dtype, .rank = static_cast<int>(shape.size())};
  CHECK(shape.size() <= t.shape.size());
  int i = 0;
  for (int64_t n : shape) t.shape[i++] = n;
  return t;
}

}  // namespace nibble
