// The 70 chat templates that come with the template engine, each with 17 conversations, against
// what Hugging Face transformers 5.23 makes of them (tests/data, tools/make_template_goldens.py).
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "text/chat/chat_template.h"
#include "text/tokenizer/o200k_for_test.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

std::time_t july_26() {
  std::tm day{.tm_hour = 12, .tm_mday = 26, .tm_mon = 6, .tm_year = 126, .tm_isdst = -1};
  return std::mktime(&day);
}

std::string read_template(const std::string& name) {
  std::ifstream file(NIBBLE_SOURCE_DIR "/build/jinja/models/templates/" + name + ".jinja");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string text_of(const Result<std::vector<TemplatePiece>>& pieces) {
  std::string text;
  for (const TemplatePiece& piece : *pieces) text += piece.text;
  return text;
}

// Templates that Hugging Face renders otherwise, or not at all: docs/chat-formats.md says why.
const std::set<std::string> kDiffer = {"Apriel-1.6-15b-Thinker-fixed",
                                       "Kimi-K2-Instruct",
                                       "Kimi-K2-Thinking",
                                       "fireworks-ai-llama-3-firefunction-v2",
                                       "llama-cpp-deepseek-r1",
                                       "meetkai-functionary-medium-v3.1",
                                       "meetkai-functionary-medium-v3.2",
                                       "openbmb-MiniCPM5-1B",
                                       "unsloth-Apriel-1.5"};

TEST(ChatTemplateGoldens, EqualTransformers) {
  const std::vector<std::pair<std::string, std::string>> literals = {
      {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}, {"unk_token", "<unk>"}};
  std::istringstream lines(unpack_data("chat_templates.jsonl.xz"));
  std::map<std::string, std::string> variables;
  std::map<std::string, ChatTemplate> templates;
  std::set<std::string> differing;
  size_t compared = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json golden = Json::parse(line);
    const std::string name = golden.value("template", ""), conversation = golden.at("case");
    if (name.empty()) {
      variables[conversation] = golden.at("variables").dump();
      continue;
    }
    auto it = templates.find(name);
    if (it == templates.end()) {
      it = templates.emplace(name, ChatTemplate::parse(read_template(name), name)).first;
    }
    const auto ours = it->second.render(variables.at(conversation), literals, july_26());
    ++compared;
    const bool same =
        ours ? golden.contains("text") && text_of(ours) == golden["text"].get<std::string>()
             : golden.contains("error");
    if (kDiffer.contains(name)) {
      if (!same) differing.insert(name);
    } else if (golden.contains("error")) {
      EXPECT_FALSE(ours) << name << ", " << conversation << ": must refuse: " << golden["error"];
    } else if (!ours) {
      ADD_FAILURE() << name << ", " << conversation << ": " << ours.error();
    } else {
      EXPECT_EQ(text_of(ours), golden["text"].get<std::string>()) << name << ", " << conversation;
    }
  }
  EXPECT_EQ(differing, kDiffer);
  EXPECT_EQ(templates.size(), 70u);
  EXPECT_EQ(compared, 70u * 17);
}

}  // namespace
}  // namespace nibble
