// What this build is, for --version, `nibble doctor` and recorded results.
#pragma once

#include <string>

namespace nibble::cli {

std::string version_text();  // "0.1.0"
std::string commit_text();   // "1aeb2ef00652", with "-dirty", or "unknown"
std::string preset_text();   // "cpu"
std::string build_text();    // all in one line, with the compiler
bool built_with_cuda();
std::string command_line();  // how this program was called, for recorded results

}  // namespace nibble::cli
