// chat and bench on the model that ships: they load it, and what it answers is checked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cli/conversation.h"
#include "cli/engine_setup.h"
#include "cli/run_for_test.h"
#include "cli/text_setup.h"
#include "io/hub.h"

namespace nibble::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string kModel = NIBBLE_SOURCE_DIR "/models/nibble-tiny-gpt-oss";

TEST(Chat, AnswersAPrompt) {
  const CommandResult result = run_command(
      {"chat", kModel, "--prompt", "What is 12 + 30?", "--temperature", "0", "--device", "cpu"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("42"));
}

TEST(Chat, TakesThePromptAsAnArgument) {
  const CommandResult result =
      run_command({"chat", kModel, "What is 12 + 30?", "--temperature", "0", "--device", "cpu"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("42"));
  for (const char* flag : {"--prompt", "--effort=low"}) {
    const CommandResult empty = run_command({"chat", kModel, flag, ""});
    EXPECT_EQ(empty.status, 2);
    EXPECT_THAT(empty.err, HasSubstr("the prompt is empty"));
  }
}

TEST(Chat, JsonTellsReasoningFromAnswer) {
  const CommandResult result =
      run_command({"chat", kModel, "--prompt", "What is 12 + 30?", "--effort", "high",
                   "--temperature", "0", "--json", "--device", "cpu"});
  ASSERT_EQ(result.status, 0) << result.err;
  const json turn = json::parse(result.out);
  EXPECT_THAT(turn["content"].get<std::string>(), HasSubstr("42"));
  EXPECT_THAT(turn["reasoning"].get<std::string>(), Not(IsEmpty()));
  EXPECT_EQ(turn["finish_reason"], "stop");
  EXPECT_GT(turn["reasoning_tokens"], 0);
  EXPECT_LT(turn["reasoning_tokens"], turn["completion_tokens"]);
}

TEST(Chat, RefusesWhatItCannotTalkWith) {
  EXPECT_EQ(run_command({"chat", kModel, "--effort", "huge"}).status, 2);
  const CommandResult config = run_command({"chat", "openai/gpt-oss-20b", "--device", "cpu"});
  EXPECT_EQ(config.status, 1);
  EXPECT_THAT(config.err, HasSubstr("tokenizer"));
}

class ConversationTest : public testing::Test {
 protected:
  ConversationTest()
      : text(load_text_side(find_model(kModel), describe_model(kModel).vocab_size)),
        loaded(load()) {
    loaded.engine->start();
  }
  LoadedEngine load() const {
    EngineFlags flags;
    flags.model = kModel;
    flags.device = "cpu";
    flags.max_model_len = 512;
    flags.max_num_seqs = 1;
    return load_engine(flags, {.masked_ids = text->masked_ids, .quiet = true});
  }
  static SamplingParams greedy() {
    SamplingParams params;
    params.temperature = 0;
    return params;
  }

  std::unique_ptr<TextSide> text;
  LoadedEngine loaded;
};

TEST_F(ConversationTest, StopIdsAreHarmonysAndMaskedIdsHaveNoText) {
  const Harmony harmony(text->tokenizer);
  EXPECT_THAT(text->stop_ids, Not(testing::Contains(harmony.ids().end)));
  EXPECT_THAT(text->stop_ids, testing::Contains(harmony.ids().stop));
  for (const int32_t id : text->masked_ids) EXPECT_FALSE(text->tokenizer.decodable(id));
}

TEST_F(ConversationTest, KeepsHistoryUntilCleared) {
  Conversation conversation(*loaded.engine, *text, {}, "");
  const auto no = [] { return false; };
  const auto first = conversation.say(
      "What is 3 + 4?", greedy(), 0, [](auto&) {}, no);
  ASSERT_TRUE(first);
  EXPECT_THAT(first->content, HasSubstr("7"));
  const auto second = conversation.say(
      "What is 5 + 4?", greedy(), 0, [](auto&) {}, no);
  ASSERT_TRUE(second);
  EXPECT_GT(second->prompt_tokens, first->prompt_tokens);
  conversation.clear();
  const auto third = conversation.say(
      "What is 3 + 4?", greedy(), 0, [](auto&) {}, no);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->prompt_tokens, first->prompt_tokens);
  EXPECT_EQ(third->content, first->content);
}

TEST_F(ConversationTest, EndsAtMaxTokensOrWhenCanceled) {
  Conversation conversation(*loaded.engine, *text, {}, "");
  const auto short_answer = conversation.say(
      "What is 3 + 4?", greedy(), 3, [](auto&) {}, [] { return false; });
  ASSERT_TRUE(short_answer);
  EXPECT_EQ(short_answer->finish, FinishReason::kLength);
  EXPECT_EQ(short_answer->completion_tokens, 3);
  const auto canceled = conversation.say(
      "What is 3 + 4?", greedy(), 0, [](auto&) {}, [] { return true; });
  ASSERT_TRUE(canceled);
  // Asked for before the first token: it may have ended by itself all the same.
  EXPECT_NE(canceled->finish, FinishReason::kLength);
}

TEST_F(ConversationTest, AFullContextIsAnErrorThatSaysWhatToDo) {
  Conversation conversation(*loaded.engine, *text, {}, "");
  std::string question = "What is 3 + 4";
  for (int i = 0; i < 300; ++i) question += " + " + std::to_string(i);
  const auto turn = conversation.say(
      question, greedy(), 0, [](auto&) {}, [] { return false; });
  ASSERT_FALSE(turn);
  EXPECT_THAT(turn.error(), HasSubstr("/clear"));
  EXPECT_TRUE(conversation.say(
      "What is 3 + 4?", greedy(), 0, [](auto&) {}, [] { return false; }));
}

TEST(Bench, MeasuresTheModelThatShips) {
  const CommandResult result = run_command({"bench", kModel, "-p", "32", "-n", "8", "--streams",
                                            "1,2", "-r", "2", "--json", "--device", "cpu"});
  ASSERT_EQ(result.status, 0) << result.err;
  const json bench = json::parse(result.out);
  EXPECT_GT(bench["read_bandwidth"], 0);
  EXPECT_GT(bench["routing_balance"]["mean"], 0);
  EXPECT_LE(bench["routing_balance"]["mean"], 1);
  ASSERT_EQ(bench["rows"].size(), 3);
  EXPECT_EQ(bench["rows"][0]["test"], "pp32");
  EXPECT_EQ(bench["rows"][2]["test"], "tg 2");
  for (const json& row : bench["rows"]) EXPECT_GT(row["value"], 0);
}

}  // namespace
}  // namespace nibble::cli
