// Any bytes: a table that is read is written and read again as the same.
#include "cli/kernel_table.h"

#include <cstdint>
#include <cstdlib>

#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using nibble::cli::kernel_table_text, nibble::cli::parse_kernel_table;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::string once;
  try {
    once = kernel_table_text(parse_kernel_table(bytes, "table"));
  } catch (const nibble::Error&) {
    return 0;
  }
  if (kernel_table_text(parse_kernel_table(once, "again")) != once) std::abort();
  return 0;
}
