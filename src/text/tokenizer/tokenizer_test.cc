// Small tokenizers in the style of each family, against what Hugging Face `tokenizers` 0.23 says
// (tests/data/tokenizers, written by tools/make_tokenizer_goldens.py), and the streaming side.
#include "text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "text/tokenizer/o200k_for_test.h"
#include "text/utf8.h"

namespace nibble {
namespace {

using testing::ElementsAre;

std::string folder(const std::string& family) {
  return NIBBLE_SOURCE_DIR "/tests/data/tokenizers/" + family;
}

class Family : public testing::TestWithParam<const char*> {
 protected:
  static std::vector<nlohmann::json> vectors() {
    std::vector<nlohmann::json> out;
    std::ifstream in(folder(GetParam()) + "/vectors.jsonl");
    for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
    return out;
  }
  const Tokenizer tokenizer = Tokenizer::load(folder(GetParam()));
};

TEST_P(Family, AgreesWithHuggingFace) {
  const auto all = vectors();
  ASSERT_GT(all.size(), 200u);
  for (const auto& v : all) {
    const std::string text = v.at("text");
    const std::vector<int32_t> ids = v.at("ids"), ids_special = v.at("ids_special");
    EXPECT_EQ(tokenizer.encode(text), ids) << text;
    EXPECT_EQ(tokenizer.encode(text, Specials::kRecognize), ids_special) << text;
    EXPECT_EQ(v.at("decoded"), tokenizer.decode(ids_special)) << text;
    EXPECT_EQ(v.at("decoded_skip"), tokenizer.decode(ids_special, true)) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Family,
                         testing::Values("qwen2", "qwen3_5", "llama3", "gpt2", "deepseek",
                                         "added_flags", "matches_only", "gaps_only"),
                         [](const auto& info) { return std::string(info.param); });

std::vector<nlohmann::json> unpack_lines(const std::string& name) {
  std::vector<nlohmann::json> out;
  std::istringstream lines(unpack_data(name));
  for (std::string line; std::getline(lines, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

// Families that are served, on o200k's texts and on a seeded part of the hostile ones that
// tools/check_tokenizers.py compares.
class ServedFamily : public testing::TestWithParam<const char*> {};

TEST_P(ServedFamily, AgreesOnMoreTexts) {
  std::vector<std::string> texts;
  for (const auto& v : unpack_lines("o200k_harmony/vectors.jsonl.xz")) texts.push_back(v["text"]);
  ASSERT_EQ(texts.size(), 3026u);
  for (const auto& v : unpack_lines("tokenizers/hostile.jsonl.xz")) texts.push_back(v);
  ASSERT_GE(texts.size(), 3040u);
  const Tokenizer tokenizer = Tokenizer::load(folder(GetParam()));
  const auto ids = unpack_lines(std::string("tokenizers/") + GetParam() + "/more_ids.jsonl.xz");
  ASSERT_EQ(ids.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer.encode(texts[i], Specials::kRecognize), ids[i].get<std::vector<int32_t>>())
        << texts[i].substr(0, 400);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, ServedFamily, testing::Values("qwen2", "qwen3_5", "llama3"),
                         [](const auto& info) { return std::string(info.param); });

const Tokenizer& llama3() {
  static const Tokenizer t = Tokenizer::load(folder("llama3") + "/tokenizer.json");
  return t;
}

TEST(Tokenizer, KnowsItsIds) {
  const int32_t bos = llama3().find_special("<|begin_of_text|>").value();
  EXPECT_TRUE(llama3().is_special(bos));
  EXPECT_EQ(llama3().token_bytes(bos), "<|begin_of_text|>");
  EXPECT_THAT(llama3().prefix_ids(), ElementsAre(bos));
  EXPECT_TRUE(llama3().suffix_ids().empty());
  EXPECT_FALSE(llama3().find_special("the").has_value());

  const int32_t a = llama3().encode("a").at(0);
  EXPECT_TRUE(llama3().decodable(a));
  EXPECT_FALSE(llama3().is_special(a));
  EXPECT_EQ(llama3().token_bytes(a), "a");
  EXPECT_TRUE(llama3().decodable(llama3().size() - 1));
  for (const int32_t id : {-1, llama3().size(), INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(llama3().decodable(id));
    EXPECT_FALSE(llama3().is_special(id));
    EXPECT_EQ(llama3().token_bytes(id), "");
  }
}

TEST(Tokenizer, SkipsIdsWithoutText) {
  const int32_t a = llama3().encode("a").at(0);
  EXPECT_EQ(llama3().decode(std::vector<int32_t>{a, -1, llama3().size() + 7, a}), "aa");
}

TEST(Tokenizer, SpecialsNeedTheCallersWord) {
  const int32_t eot = llama3().find_special("<|eot_id|>").value();
  EXPECT_THAT(llama3().encode("<|eot_id|>"), testing::Not(testing::Contains(eot)));
  EXPECT_THAT(llama3().encode("<|eot_id|>", Specials::kRecognize), ElementsAre(eot));
}

// Random bytes: most of them not UTF-8.
std::string random_bytes(std::mt19937& rng) {
  constexpr std::string_view kParts[] = {
      "\x80", "\xC3", "\xE2\x82", "\xF0\x9F", "\xED\xA0\x80",
      "\xFF", "a",    " the",     "\xC3\xA9", "\xF0\x9F\x92\x96"};
  std::string bytes;
  for (int n = static_cast<int>(rng() % 12); n >= 0; --n)
    bytes += kParts[rng() % std::size(kParts)];
  return bytes;
}

TEST(Tokenizer, KeepsInvalidUtf8) {
  std::mt19937 rng(1);
  for (int i = 0; i < 2000; ++i) {
    const std::string bytes = random_bytes(rng);
    EXPECT_EQ(llama3().decode_bytes(llama3().encode(bytes)), bytes);
  }
  // Around invalid bytes, text has the ids that it has alone.
  const auto the = llama3().encode(" the");
  auto ids = llama3().encode(" the\xFF");
  ASSERT_EQ(ids.size(), the.size() + 1);
  ids.pop_back();
  EXPECT_EQ(ids, the);
}

TEST(Tokenizer, DecodeIsAlwaysUtf8) {
  std::mt19937 rng(2);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids(rng() % 10);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % llama3().size());
    const std::string text = llama3().decode(ids);
    EXPECT_EQ(utf8::valid_prefix(text), text.size());
  }
}

std::vector<int32_t> byte_tokens(std::string_view bytes) {
  std::vector<int32_t> ids;
  for (const char c : bytes) {
    for (int32_t id = 0; id < llama3().size(); ++id) {
      if (llama3().token_bytes(id) == std::string_view(&c, 1)) {
        ids.push_back(id);
        break;
      }
    }
  }
  return ids;
}

TEST(Detokenizer, NeverEmitsHalfACharacter) {
  // One token per byte, so every split of every character occurs.
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x92\x96z";
  const std::vector<int32_t> ids = byte_tokens(text);
  ASSERT_EQ(ids.size(), text.size());
  Detokenizer detokenizer(llama3());
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(detokenizer.push(id));
  EXPECT_THAT(pieces, ElementsAre("a", "", "\xC3\xA9", "", "", "\xE2\x82\xAC", "", "", "",
                                  "\xF0\x9F\x92\x96", "z"));
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, ReplacesMaximalBadPrefixes) {
  struct Case {
    std::string bytes, text;
  };
  const std::string r = "\xEF\xBF\xBD";
  // The examples of Unicode 15, section 3.9, tables 3-8 to 3-11, and cut ends.
  for (const Case& c :
       {Case{"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", r + r + r + r + r + r + r + r + "A"},
        Case{"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", r + r + r + r + r + r + r + r + "A"},
        Case{"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", r + r + r + r + r + "A" + r + r + "B"},
        Case{"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", r + r + r + r + "A"},
        Case{" \xF0\x9F", " " + r}, Case{"\xE2\x82", r}, Case{"\xC3", r}, Case{"\x80", r},
        Case{"", ""}}) {
    const std::vector<int32_t> ids = byte_tokens(c.bytes);
    ASSERT_EQ(ids.size(), c.bytes.size());
    EXPECT_EQ(llama3().decode(ids), c.text);
    Detokenizer detokenizer(llama3());
    std::string streamed;
    for (const int32_t id : ids) streamed += detokenizer.push(id);
    EXPECT_EQ(streamed + detokenizer.flush(), c.text);
  }
}

TEST(Detokenizer, PiecesJoinedEqualDecode) {
  std::mt19937 rng(3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids(rng() % 16);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % llama3().size());
    for (const bool skip : {false, true}) {
      Detokenizer detokenizer(llama3(), skip);
      std::string streamed;
      for (const int32_t id : ids) {
        const std::string piece = detokenizer.push(id);
        ASSERT_EQ(utf8::valid_prefix(piece), piece.size());
        streamed += piece;
      }
      EXPECT_EQ(streamed + detokenizer.flush(), llama3().decode(ids, skip));
    }
  }
}

TEST(Detokenizer, ACopyIsASnapshot) {
  const std::vector<int32_t> ids = byte_tokens("\xE2\x82\xAC");
  Detokenizer detokenizer(llama3());
  detokenizer.push(ids[0]);
  detokenizer.push(ids[1]);
  Detokenizer snapshot = detokenizer;
  EXPECT_EQ(detokenizer.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(snapshot.push(ids[2]), "\xE2\x82\xAC");
}

}  // namespace
}  // namespace nibble
