// What generation_config.json and config.json say reaches the text side of a model.
#include "cli/text_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

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

TEST(TextSetup, ConfigsOfModelsThatSeeImages) {
  const std::string nested = R"({"text_config": {"vocab_size": 1990, "eos_token_id": 7}})";
  EXPECT_THAT(stops(nested, R"({"eos_token_id": [9, 7]})"), ElementsAre(7, 9));
  EXPECT_EQ(vocab_size_of(files(nested, "")), 1990);
  EXPECT_EQ(vocab_size_of(files(R"({"vocab_size": 2000})", "")), 2000);
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

// A model's directory: the tokenizer of Qwen 2, and the files given.
class TemplateDirectory : public testing::Test {
 protected:
  TemplateDirectory() : path_(testing::TempDir() + "nibble_template_directory") {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    std::filesystem::copy(NIBBLE_SOURCE_DIR "/tests/data/tokenizers/qwen2/tokenizer.json",
                          path_ / "tokenizer.json");
  }
  ~TemplateDirectory() override { std::filesystem::remove_all(path_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(path_ / name) << text;
  }
  std::unique_ptr<TextSide> load(const ChatFormatFlags& flags = {}) {
    ModelFiles model = files("{}", "");
    model.directory = path_;
    return load_text_side(model, 2000, flags);
  }
  std::string prompt(const ChatFormatFlags& flags = {}) {
    const auto text = load(flags);
    Chat chat;
    chat.messages = {{.role = Role::kUser, .content = "Hi"}};
    return text->tokenizer.decode(text->chat_format->render(chat)->ids);
  }
  std::string failure(const ChatFormatFlags& flags = {}) {
    try {
      load(flags);
      return "";
    } catch (const Error& e) {
      failure_kind_ = e.kind();
      return e.what();
    }
  }

  const std::filesystem::path path_;
  ErrorKind failure_kind_ = {};
};

TEST_F(TemplateDirectory, TakesTheTemplateThatComesFirst) {
  EXPECT_EQ(load()->chat_format, nullptr);
  write("tokenizer_config.json",
        R"({"chat_template": "config{{ eos_token }}", "eos_token": "<|im_end|>"})");
  EXPECT_EQ(prompt(), "config<|im_end|>");
  write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(prompt(), "json");
  write("chat_template.jinja", "jinja");
  EXPECT_EQ(prompt(), "jinja");
  write("other", "{{ messages[0].content }}");
  EXPECT_EQ(prompt({.chat_template = path_ / "other"}), "Hi");
}

TEST_F(TemplateDirectory, TheEndOfATurnIsAStop) {
  write("tokenizer_config.json", R"({"chat_template": "a", "eos_token": "<|im_end|>"})");
  const auto text = load();
  EXPECT_THAT(text->stop_ids, ElementsAre(text->tokenizer.find_special("<|im_end|>").value()));
}

TEST_F(TemplateDirectory, SaysWhatIsWrongWithATemplate) {
  EXPECT_THAT(failure({.tool_call_parser = "hermes"}), HasSubstr("has no chat template"));
  EXPECT_THAT(failure({.chat_template = "/nowhere"}), HasSubstr("/nowhere: cannot be read"));
  write("chat_template.jinja", "{% if %}");
  EXPECT_THAT(failure(), HasSubstr("chat_template.jinja: not a template"));
  write("chat_template.jinja", "{% for i in range(1000000000000) %}x{% endfor %}");
  EXPECT_THAT(failure(), HasSubstr("chat_template.jinja: the chat template cannot render"));
  write("chat_template.jinja", "<tool_call> {{ messages }}");
  EXPECT_EQ(failure({.tool_call_parser = "hermes"}), "");
  EXPECT_THAT(failure({.tool_call_parser = "qwen3_coder"}), HasSubstr("does not write calls"));
  EXPECT_NE(failure_kind_, ErrorKind::kUsage);  // exit code 1: the flag is as good as any
  EXPECT_THAT(failure({.tool_call_parser = "horse"}), HasSubstr("known are hermes"));
  EXPECT_THAT(failure({.reasoning_parser = "horse"}), HasSubstr("known are qwen3"));
}

}  // namespace
}  // namespace nibble::cli
