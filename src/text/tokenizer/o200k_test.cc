// The real vocabulary of gpt-oss against ids that Hugging Face `tokenizers` gives (equal to
// tiktoken's): tests/data/o200k_harmony.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "text/tokenizer/o200k_for_test.h"

namespace nibble {
namespace {

struct Vector {
  std::string text;
  std::vector<int32_t> ids;
};

const std::vector<Vector>& vectors() {
  static const std::vector<Vector> all = [] {
    std::vector<Vector> out;
    std::istringstream lines(unpack_o200k("vectors.jsonl.xz"));
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
