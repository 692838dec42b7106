// The real vocabulary of gpt-oss against ids that Hugging Face `tokenizers` gives (equal to
// tiktoken's): tests/data/o200k_harmony, packed by xz because the file has 12 MB.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/tokenizer/tokenizer.h"

namespace nibble {
namespace {

std::string unpack(const std::string& name) {
  const std::string path = NIBBLE_SOURCE_DIR "/tests/data/o200k_harmony/" + name;
  FILE* pipe = popen(("xz -dc '" + path + "'").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run xz");
  std::string text;
  std::array<char, 1 << 16> block;
  while (const size_t n = fread(block.data(), 1, block.size(), pipe)) text.append(block.data(), n);
  if (pclose(pipe) != 0) throw std::runtime_error("xz cannot unpack " + path);
  return text;
}

const Tokenizer& o200k() {
  static const Tokenizer tokenizer = Tokenizer::parse(unpack("tokenizer.json.xz"), "o200k");
  return tokenizer;
}

struct Vector {
  std::string text;
  std::vector<int32_t> ids;
};

const std::vector<Vector>& vectors() {
  static const std::vector<Vector> all = [] {
    std::vector<Vector> out;
    std::istringstream lines(unpack("vectors.jsonl.xz"));
    for (std::string line; std::getline(lines, line);) {
      const auto v = nlohmann::json::parse(line);
      out.push_back({v.at("text"), v.at("ids")});
    }
    return out;
  }();
  return all;
}

TEST(O200k, EncodesAllVectors) {
  ASSERT_EQ(vectors().size(), 3026u);
  for (const Vector& v : vectors()) ASSERT_EQ(o200k().encode(v.text), v.ids) << v.text;
}

TEST(O200k, DecodesAllVectors) {
  for (const Vector& v : vectors()) ASSERT_EQ(o200k().decode(v.ids), v.text);
}

}  // namespace
}  // namespace nibble
