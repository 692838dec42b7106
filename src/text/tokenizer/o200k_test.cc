// The real vocabulary of gpt-oss against ids that Hugging Face `tokenizers` gives (equal to
// tiktoken's): tests/data/o200k_harmony.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "text/tokenizer/o200k_for_test.h"
#include "text/utf8.h"

namespace nibble {
namespace {

using testing::ElementsAre;

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

TEST(O200k, StreamsAllVectors) {
  Detokenizer detokenizer(o200k());
  for (const Vector& v : vectors()) {
    std::string text;
    for (const int32_t id : v.ids) {
      const std::string piece = detokenizer.push(id);
      ASSERT_EQ(utf8::valid_prefix(piece), piece.size());
      text += piece;
    }
    ASSERT_EQ(text + detokenizer.flush(), v.text);
  }
}

// Four threads on one tokenizer, each with the vectors in another order.
TEST(O200k, ThreadsShareOneTokenizer) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([seed, &wrong, all = vectors(), tokenizer = o200k()]() mutable {
      std::shuffle(all.begin(), all.end(), std::mt19937(seed));
      for (const Vector& v : all) wrong += tokenizer.encode(v.text) != v.ids;
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(O200k, KnowsHarmonysSpecialTokens) {
  EXPECT_EQ(o200k().size(), 200019);
  EXPECT_EQ(o200k().find_special("<|return|>"), 200002);
  EXPECT_EQ(o200k().find_special("<|call|>"), 200012);
  EXPECT_FALSE(o200k().find_special("<|untrusted|>").has_value());
  EXPECT_FALSE(o200k().decodable(200019));
  for (int32_t id = 199998; id < 200019; ++id) EXPECT_TRUE(o200k().is_special(id)) << id;
  EXPECT_FALSE(o200k().is_special(199997));
}

TEST(O200k, SpecialsOnlyWhereAllowed) {
  const std::string text = "<|start|>user<|message|>What is 2 + 2?<|end|><|start|>assistant";
  EXPECT_THAT(o200k().encode(text, Specials::kRecognize),
              ElementsAre(200006, 1428, 200008, 4827, 382, 220, 17, 659, 220, 17, 30, 200007,
                          200006, 173781));
  EXPECT_THAT(o200k().encode("<|start|>"), ElementsAre(27, 91, 5236, 91, 29));
}

// Token 9552 is a space and half an emoji. Harmony's parser says the same.
TEST(O200k, ReplacesAnUnfinishedCharacterWhenTheNextBegins) {
  Detokenizer detokenizer(o200k());
  EXPECT_EQ(detokenizer.push(9552), " ");
  EXPECT_EQ(detokenizer.push(12194), "\xEF\xBF\xBDHi");
  EXPECT_EQ(detokenizer.flush(), "");
}

}  // namespace
}  // namespace nibble
