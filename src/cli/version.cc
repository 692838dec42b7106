#include "cli/version.h"

#include "nibble_commit.h"

namespace nibble::cli {

std::string version_text() { return NIBBLE_VERSION; }
std::string commit_text() { return NIBBLE_COMMIT; }
std::string preset_text() { return NIBBLE_PRESET; }

std::string build_text() {
#ifdef __clang__
  const std::string compiler = "clang " __clang_version__;
#else
  const std::string compiler = "g++ " __VERSION__;
#endif
  return "nibble " NIBBLE_VERSION " (commit " NIBBLE_COMMIT ", preset " NIBBLE_PRESET ", " +
         compiler + ")";
}

bool built_with_cuda() { return NIBBLE_BUILT_WITH_CUDA; }

}  // namespace nibble::cli
