// Element types of tensors in memory and on disk.
#pragma once

#include <cstdint>

namespace nibble {

enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool
};

struct DTypeInfo {
  const char* name;
  int64_t bytes;
};

constexpr DTypeInfo dtype_info(DType t) {
  constexpr DTypeInfo kTable[] = {{"f64", 8},    {"f32", 4},    {"f16", 2}, {"bf16", 2},
                                  {"f8e4m3", 1}, {"f8e5m2", 1}, {"i64", 8}, {"i32", 4},
                                  {"i16", 2},    {"i8", 1},     {"u8", 1},  {"bool", 1}};
  return kTable[static_cast<int>(t)];
}

// Bytes of one element.
constexpr int64_t dtype_bytes(DType t) { return dtype_info(t).bytes; }
constexpr const char* dtype_name(DType t) { return dtype_info(t).name; }

}  // namespace nibble
