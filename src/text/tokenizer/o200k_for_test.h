// The real vocabulary of gpt-oss for tests: tests/data/o200k_harmony, packed by xz because the file
// has 12 MB.
#pragma once

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "text/tokenizer/tokenizer.h"

namespace nibble {

// `name`: of a file under tests/data.
inline std::string unpack_data(const std::string& name) {
  const std::string path = NIBBLE_SOURCE_DIR "/tests/data/" + name;
  FILE* pipe = popen(("xz -dc '" + path + "'").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run xz");
  std::string text;
  std::array<char, 1 << 16> block;
  while (const size_t n = fread(block.data(), 1, block.size(), pipe)) text.append(block.data(), n);
  if (pclose(pipe) != 0) throw std::runtime_error("xz cannot unpack " + path);
  return text;
}

inline std::string unpack_o200k(const std::string& name) {
  return unpack_data("o200k_harmony/" + name);
}

inline const Tokenizer& o200k() {
  static const Tokenizer tokenizer = Tokenizer::parse(unpack_o200k("tokenizer.json.xz"), "o200k");
  return tokenizer;
}

}  // namespace nibble
