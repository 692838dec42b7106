#include "cli/version.h"

#include <algorithm>
#include <fstream>
#include <iterator>

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

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::replace(text.begin(), text.end(), '\0', ' ');
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

}  // namespace nibble::cli
