// model.safetensors.index.json.
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble;
  try {
    const SafetensorsIndex index =
        parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "fuzz");
    const std::filesystem::path directory = "/models/m";
    for (const auto& [tensor, file] : index.file_of)
      CHECK((directory / file).lexically_normal().parent_path() == directory);
    CHECK(!index.total_bytes || *index.total_bytes >= 0);
  } catch (const Error&) {
  }
  return 0;
}
