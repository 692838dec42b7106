// The prefix cache in the engine, over the toy model: the same text as without it, and what is
// reported of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_testing.h"

namespace nibble {
namespace {

Request greedy(std::vector<int32_t> prompt, int32_t max_tokens = 12) {
  Request request{.prompt = std::move(prompt), .max_tokens = max_tokens};
  request.sampling.temperature = 0;
  request.sampling.logprobs = 2;
  return request;
}

// `same` tokens of one prompt, then others.
std::vector<int32_t> branch(const std::vector<int32_t>& prompt, int32_t same, int32_t salt) {
  std::vector<int32_t> ids = toy_prompt(static_cast<int32_t>(prompt.size()), salt);
  std::copy_n(prompt.begin(), same, ids.begin());
  if (ids[same] == prompt[same]) ids[same] = (ids[same] + 1) % ToyModel::kVocab;
  return ids;
}

TEST(EnginePrefix, SameTextAfterAHitOfAnyLength) {
  const std::vector<int32_t> first = toy_prompt(60, 1);
  for (int32_t same = 0; same < 60; ++same) {
    ToyModel model;
    Engine engine(model, {}, toy_options());
    run_all(engine, {greedy(first)});
    const Request request = greedy(branch(first, same, 2));
    const Transcript found = run_all(engine, {request})[0];
    // Whole pages only: nothing from the first differing token on.
    EXPECT_EQ(found.cached_tokens, same / toy_options().page_size * toy_options().page_size);
    EXPECT_TRUE(found == run_alone(toy_options(), request)) << same << " tokens";
  }
}

TEST(EnginePrefix, AnswersAreFoundByTheNextTurn) {
  ToyModel model;
  Engine engine(model, {}, toy_options());
  Request turn = greedy(toy_prompt(30, 1), 25);
  for (int i = 0; i < 5; ++i) {
    const Transcript answer = run_all(engine, {turn})[0];
    EXPECT_TRUE(answer == run_alone(toy_options(), turn)) << "turn " << i;
    if (i > 0) {  // prompt and answer of the turn before; its last id was never an input
      EXPECT_EQ(answer.cached_tokens, (static_cast<int32_t>(turn.prompt.size()) - 8) / 4 * 4);
    }
    turn.prompt.insert(turn.prompt.end(), answer.ids.begin(), answer.ids.end());
    for (int32_t id = 0; id < 7; ++id) turn.prompt.push_back(id + i);
  }
}

TEST(EnginePrefix, SaltsKeepTenantsApart) {
  ToyModel model;
  Engine engine(model, {}, toy_options());
  Request request = greedy(toy_prompt(40, 1));
  request.cache_salt = "one";
  EXPECT_EQ(run_all(engine, {request})[0].cached_tokens, 0);
  EXPECT_EQ(run_all(engine, {request})[0].cached_tokens, 36);
  request.cache_salt = "two";
  EXPECT_EQ(run_all(engine, {request})[0].cached_tokens, 0);
  request.cache_salt = "";
  EXPECT_EQ(run_all(engine, {request})[0].cached_tokens, 0);
}

TEST(EnginePrefix, ScoredPromptsAreComputedWhole) {
  ToyModel model;
  Engine engine(model, {}, toy_options());
  Request request = greedy(toy_prompt(40, 1));
  run_all(engine, {request});
  request.prompt_logprobs = 2;
  const Transcript scored = run_all(engine, {request})[0];
  EXPECT_EQ(scored.cached_tokens, 0);
  EXPECT_EQ(scored.scores.size(), 40u);
  EXPECT_TRUE(scored == run_alone(toy_options(), request));
}

TEST(EnginePrefix, IsCountedAndCanBeTurnedOff) {
  ToyModel model;
  Engine engine(model, {}, toy_options());
  const Request request = greedy(toy_prompt(40, 1));
  run_all(engine, {request});
  run_all(engine, {request});
  EXPECT_EQ(engine.stats().prefix_cache_queries, 80);
  EXPECT_EQ(engine.stats().prefix_cache_hits, 36);
  EXPECT_EQ(engine.stats().prompt_tokens, 40 + 4);  // computed

  EngineOptions without = toy_options();
  without.prefix_caching = false;
  Engine other(model, {}, without);
  run_all(other, {request});
  EXPECT_EQ(run_all(other, {request})[0].cached_tokens, 0);
}

// Forks of prompts of every length, beside others and in memory so tight that some are preempted.
TEST(EnginePrefix, ForksKeepTheirTextUnderPressure) {
  for (bool caching : {false, true}) {
    EngineOptions options = toy_options();
    options.max_model_len = 128;
    options.max_num_seqs = 4;
    options.prefix_caching = caching;
    ToyModel model;
    options.kv_bytes = Engine::kv_bytes_for(model.info(), options, 128, 1);
    Engine engine(model, {}, options);
    for (int32_t length = 1; length <= 40; ++length) {
      std::vector<Request> requests(3, {.prompt = toy_prompt(length, 3), .max_tokens = 50});
      for (size_t i = 0; i < requests.size(); ++i) requests[i].sampling.seed = length * 10 + i;
      const std::vector<Transcript> forks = run_forks(engine, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_TRUE(forks[i] == run_alone(options, requests[i])) << length << " tokens";
      }
    }
    EXPECT_GT(engine.stats().num_preemptions, 3);
    EXPECT_EQ(engine.stats().kv_usage, 0);
  }
}

TEST(EnginePrefix, ForksEndByThemselves) {
  ToyModel model;
  Engine engine(model, {}, toy_options());
  std::vector<Request> requests(3, {.prompt = toy_prompt(30, 1), .max_tokens = 30});
  std::vector<std::shared_ptr<Transcript>> transcripts;
  for (Request& request : requests) transcripts.push_back(record(request));
  const auto ids = engine.submit_forks(requests);
  ASSERT_TRUE(ids.ok());
  engine.cancel((*ids)[0]);  // before anything is computed: the others go on
  engine.step();
  EXPECT_EQ(transcripts[0]->finish, FinishReason::kCanceled);
  for (int i = 0; i < 5; ++i) engine.step();
  EXPECT_EQ(engine.stats().num_running, 2);
  engine.cancel((*ids)[2]);
  while (engine.step()) {
  }
  EXPECT_EQ(transcripts[2]->finish, FinishReason::kCanceled);
  EXPECT_EQ(transcripts[1]->ids.size(), 30u);
}

TEST(EnginePrefix, LateRequestsEndAndOthersGoOn) {
  ToyModel model;
  Engine engine(model, {}, toy_options());
  Request late = greedy(toy_prompt(30, 1));
  late.deadline = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  Request in_time = late;
  in_time.deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
  const std::vector<Transcript> ends = run_all(engine, {late, in_time});
  EXPECT_EQ(ends[0].finish, FinishReason::kDeadline);
  EXPECT_TRUE(ends[0].ids.empty());
  EXPECT_EQ(ends[1].finish, FinishReason::kLength);
  EXPECT_EQ(engine.stats().metrics.ended(FinishReason::kDeadline), 1);
}

// Turns of many chats over memory for a few: hits, evictions and preemptions in every mixture, and
// always the text that the chat has alone.
TEST(EnginePrefix, ChatsUnderPressureKeepTheirText) {
  EngineOptions options = toy_options();
  options.max_model_len = 256;
  options.max_num_seqs = 4;
  ToyModel model;
  options.kv_bytes = Engine::kv_bytes_for(model.info(), options, 256, 1);
  Engine engine(model, {}, options);
  std::vector<std::vector<int32_t>> chats;
  const std::vector<int32_t> system = toy_prompt(23, 0);
  for (int32_t c = 0; c < 6; ++c) {
    chats.push_back(branch(toy_prompt(35, c), 0, c));
    std::copy(system.begin(), system.end(), chats.back().begin());
  }
  for (int turn = 0; turn < 6; ++turn) {
    std::vector<Request> requests;
    for (const auto& chat : chats) requests.push_back(greedy(chat, 18));
    const std::vector<Transcript> answers = run_all(engine, requests);
    for (size_t c = 0; c < chats.size(); ++c) {
      EXPECT_TRUE(answers[c] == run_alone(options, requests[c])) << "turn " << turn;
      chats[c].insert(chats[c].end(), answers[c].ids.begin(), answers[c].ids.end());
      for (int32_t id = 0; id < 5; ++id) chats[c].push_back((id * 3 + turn) % ToyModel::kVocab);
    }
  }
  EXPECT_GT(engine.stats().num_preemptions, 3);
  EXPECT_GT(engine.stats().prefix_cache_hits, 500);
  EXPECT_EQ(engine.stats().kv_usage, 0);
}

}  // namespace
}  // namespace nibble
