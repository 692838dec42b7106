// The first bytes of a file taken for safetensors: length and header.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble;
  if (size < 8) return 0;
  const auto file_bytes = static_cast<int64_t>(size);
  try {
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    const int64_t length =
        safetensors_header_bytes(std::span<const std::byte, 8>(bytes, 8), file_bytes, "fuzz");
    const std::string_view header(reinterpret_cast<const char*>(data) + 8,
                                  static_cast<size_t>(length));
    int64_t next = 8 + length;
    for (const TensorInfo& t : parse_safetensors_header(header, file_bytes, "fuzz")) {
      CHECK(t.offset == next && t.bytes >= 0);
      next += t.bytes;
      CHECK(next <= file_bytes);
    }
    CHECK(next == file_bytes);
  } catch (const Error&) {
  }
  return 0;
}
