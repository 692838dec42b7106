// What generation_config.json and config.json say reaches the text side of a model.
#include "cli/text_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace nibble::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelFiles files(const std::string& config, const std::string& generation_config) {
  return {.name = "m",
          .directory = NIBBLE_SOURCE_DIR "/tests/data/tokenizers/qwen2",
          .weights = {},
          .config = Config::parse(config, "config.json"),
          .generation_config = generation_config.empty()
                                   ? std::optional<Config>()
                                   : Config::parse(generation_config, "generation_config.json")};
}

std::vector<int32_t> stops(const std::string& config, const std::string& generation_config) {
  return load_text_side(files(config, generation_config), 2000)->stop_ids;
}

TEST(TextSetup, StopsAreThoseOfBothFiles) {
  EXPECT_THAT(stops(R"({"eos_token_id": 7})", ""), ElementsAre(7));
  EXPECT_THAT(stops(R"({"eos_token_id": 7})", R"({"top_k": 2})"), ElementsAre(7));
  EXPECT_THAT(stops(R"({"eos_token_id": 11})", R"({"eos_token_id": [2, 11]})"), ElementsAre(2, 11));
  EXPECT_THAT(stops(R"({"eos_token_id": [9, 3]})", R"({"eos_token_id": 5})"), ElementsAre(3, 5, 9));
}

TEST(TextSetup, RefusesStopsOutsideTheVocabulary) {
  try {
    stops("{}", R"({"eos_token_id": [1, 2000]})");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("generation_config.json: eos_token_id"));
  }
}

TEST(TextSetup, SamplingDefaultsAreTheFiles) {
  const auto text = load_text_side(
      files("{}", R"({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20,
                      "min_p": 0.05, "repetition_penalty": 1.05, "transformers_version": "5"})"),
      2000);
  EXPECT_FLOAT_EQ(text->defaults.temperature, 0.7f);
  EXPECT_FLOAT_EQ(text->defaults.top_p, 0.8f);
  EXPECT_EQ(text->defaults.top_k, 20);
  EXPECT_FLOAT_EQ(text->defaults.min_p, 0.05f);
  EXPECT_FLOAT_EQ(text->defaults.repetition_penalty, 1.05f);
  EXPECT_EQ(load_text_side(files("{}", R"({"do_sample": false, "temperature": 0.7})"), 2000)
                ->defaults.temperature,
            0);
}

}  // namespace
}  // namespace nibble::cli
