// Recurrent layers in the engine, over the toy model, whose state follows from every token: the
// text is that of an engine that computes all of it alone, whatever is shared, cut, dropped or put
// back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/lives_testing.h"
#include "engine/speculation_testing.h"

namespace nibble {
namespace {

struct RecurrentToy : ToyModel {
  RecurrentToy() : ToyModel(8192, true) {}
};

EngineOptions options_of(int32_t page_size = 4, int32_t step_tokens = 64) {
  EngineOptions options = toy_options();
  options.page_size = page_size;
  options.max_num_batched_tokens = step_tokens;
  return options;
}

Transcript alone(const Request& request, int32_t max_model_len = 512) {
  RecurrentToy model;
  EngineOptions options = options_of();
  options.max_model_len = max_model_len;
  return run_alone(model, {}, options, request);
}

Request greedy(std::vector<int32_t> prompt, int32_t max_tokens = 12) {
  Request request{.prompt = std::move(prompt), .max_tokens = max_tokens};
  request.sampling.temperature = 0;
  request.sampling.logprobs = 2;
  return request;
}

// `same` tokens of one prompt, then others.
std::vector<int32_t> branch(const std::vector<int32_t>& prompt, int32_t same, int32_t salt) {
  std::vector<int32_t> ids = prompt;
  for (int32_t i = same; i < std::ssize(ids); ++i) ids[i] = (ids[i] + salt) % ToyModel::kVocab;
  return ids;
}

void expect_idle(const Engine& engine) {
  EXPECT_EQ(engine.stats().kv_usage, 0);
  EXPECT_EQ(engine.stats().states_running, 0);
}

TEST(EngineStates, TextsThatPartAnywhere) {
  const std::vector<int32_t> first = toy_prompt(60, 1);
  for (int32_t same = 0; same < 60; ++same) {
    RecurrentToy model;
    Engine engine(model, {}, options_of());
    for (int32_t salt : {0, 1, 2}) {
      const Request request = greedy(branch(first, same, salt));
      const Transcript found = run_all(engine, {request})[0];
      EXPECT_TRUE(found == alone(request)) << same << " tokens, text " << salt;
      // The first leaves no state where it parts from others, the second does, if that is worth it.
      const int32_t pages = same / 4;
      EXPECT_EQ(found.cached_tokens, salt == 2 && pages >= kPartingPages ? 4 * pages : 0) << same;
    }
    expect_idle(engine);
  }
}

// Prompt and answer of the turn before, at any offset of a page; its last id was never an input.
TEST(EngineStates, AnswersAreFoundByTheNextTurn) {
  for (const int32_t page_size : {1, 4, 16}) {
    RecurrentToy model;
    Engine engine(model, {}, options_of(page_size));
    Request turn = greedy(toy_prompt(30, 1), 25);
    for (int i = 0; i < 12; ++i) {
      turn.max_tokens = 20 + i;
      const Transcript answer = run_all(engine, {turn})[0];
      EXPECT_TRUE(answer == alone(turn)) << "turn " << i;
      EXPECT_EQ(answer.cached_tokens, i > 0 ? std::ssize(turn.prompt) - 8 : 0);
      turn.prompt.insert(turn.prompt.end(), answer.ids.begin(), answer.ids.end());
      for (int32_t id = 0; id < 7; ++id) turn.prompt.push_back(id + i);
    }
  }
}

// A template that begins the answer otherwise when the text comes again.
TEST(EngineStates, ALongPromptsEndIsFound) {
  EngineOptions options = options_of(2, 128);
  options.max_model_len = 1024;
  RecurrentToy model;
  Engine engine(model, {}, options);
  const Request request = greedy(toy_prompt(301, 5));
  EXPECT_TRUE(run_all(engine, {request})[0] == alone(request, 1024));
  EXPECT_EQ(run_all(engine, {request})[0].cached_tokens, 292);  // 8 tokens before, whole pages
  const Request other = greedy(branch(request.prompt, 295, 1));
  const Transcript found = run_all(engine, {other})[0];
  EXPECT_EQ(found.cached_tokens, 292);
  EXPECT_TRUE(found == alone(other, 1024));
}

TEST(EngineStates, WithinALongPromptStatesAreKept) {
  EngineOptions options = options_of(1, 64);
  options.max_model_len = 2048;
  RecurrentToy model;
  Engine engine(model, {}, options);
  const Request request = greedy(toy_prompt(1500, 5), 3);
  run_all(engine, {request});
  const Request other = greedy(branch(request.prompt, 1000, 1), 3);
  const Transcript found = run_all(engine, {other})[0];
  EXPECT_EQ(found.cached_tokens, 768);  // every kStatePages
  EXPECT_TRUE(found == alone(other, 2048));
}

TEST(EngineStates, SaltsKeepTenantsApart) {
  RecurrentToy model;
  Engine engine(model, {}, options_of());
  Request request = greedy(toy_prompt(60, 1));
  run_all(engine, {request});
  request.prompt.push_back(5);
  request.cache_salt = "one";
  EXPECT_EQ(run_all(engine, {request})[0].cached_tokens, 0);
  request.prompt.push_back(5);
  EXPECT_EQ(run_all(engine, {request})[0].cached_tokens, 61);
  request.cache_salt = "two";
  EXPECT_EQ(run_all(engine, {request})[0].cached_tokens, 0);
}

TEST(EngineStates, AnyChunksGiveTheSameText) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) {
    requests.push_back(greedy(toy_prompt(1 + 67 * i, i)));
    requests.back().sampling = {.temperature = 0.7f, .seed = 50 + i, .logprobs = 1};
    if (i == 4) requests.back().prompt_logprobs = 2;
  }
  for (const int32_t tokens : {6, 7, 16, 100, 1000, 4096}) {
    EngineOptions options = options_of(4, tokens);
    options.max_num_seqs = 6;
    RecurrentToy model;
    Engine engine(model, {}, options);
    for (int round = 0; round < 2; ++round) {
      const std::vector<Transcript> found = run_all(engine, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_TRUE(found[i] == alone(requests[i])) << tokens << " tokens, request " << i;
      }
    }
    expect_idle(engine);
  }
  EngineOptions whole = options_of(4, 512);  // prompts are not cut then
  whole.chunked_prefill = false;
  RecurrentToy model;
  Engine engine(model, {}, whole);
  const std::vector<Transcript> found = run_all(engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_TRUE(found[i] == alone(requests[i]));
}

TEST(EngineStates, ForksUnderPressure) {
  for (const bool caching : {false, true}) {
    EngineOptions options = options_of();
    options.max_model_len = 128;
    options.max_num_seqs = 4;
    options.prefix_caching = caching;
    RecurrentToy model;
    const int64_t page = page_bytes(model.info().groups[1], {.page_size = 4, .dtype = DType::kF32});
    options.kv_bytes = Engine::kv_bytes_for(model.info(), options, 128, 4) - 96 * page;  // of 128
    Engine engine(model, {}, options);
    for (int32_t length = 1; length <= 40; ++length) {
      std::vector<Request> requests(3, {.prompt = toy_prompt(length, 3), .max_tokens = 50});
      for (size_t i = 0; i < requests.size(); ++i) requests[i].sampling.seed = length * 10 + i;
      const std::vector<Transcript> forks = run_forks(engine, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_TRUE(forks[i] == alone(requests[i])) << length << " tokens, fork " << i;
      }
    }
    EXPECT_GT(engine.stats().num_preemptions, 3);
    expect_idle(engine);
  }
}

std::vector<Request> with_watchers(std::vector<Request> requests, bool are_late) {
  for (size_t i = 0; i < requests.size(); i += 2) {
    requests[i].watcher = std::make_shared<LateWatcher>(are_late ? i + 1 : 0);
  }
  return requests;
}

std::vector<Request> mixed_requests(uint64_t seed) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 10; ++i) {
    Request r{.prompt = toy_prompt(1 + i * 13, i), .max_tokens = 40 - i};
    r.sampling = {.temperature = i % 3 == 0 ? 0 : 0.8f, .seed = seed + i, .logprobs = i % 4};
    if (i % 4 == 3) r.sampling.repetition_penalty = 1.3f;
    if (i % 5 == 4) r.prompt_logprobs = 2;
    if (i % 6 == 5) r.stop_ids = {3, 9, 33}, r.min_tokens = 20;
    requests.push_back(r);
  }
  return requests;
}

std::vector<Transcript> each_alone(std::vector<Request> requests) {
  std::vector<Transcript> transcripts;
  for (const Request& request : requests) transcripts.push_back(alone(request));
  return transcripts;
}

// The token is computed again, from the state before it.
TEST(EngineStates, MasksThatComeLate) {
  for (const uint64_t seed : {1, 2, 3}) {
    const std::vector<Transcript> expected = each_alone(with_watchers(mixed_requests(seed), false));
    for (const int32_t tokens : {16, 64}) {
      RecurrentToy model;
      Engine engine(model, {}, options_of(4, tokens));
      const std::vector<Transcript> found =
          run_all(engine, with_watchers(mixed_requests(seed), true));
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(found[i] == expected[i]) << "seed " << seed << ", request " << i;
      }
      expect_idle(engine);
    }
  }
}

// The prompt before a token whose mask is not there yet is not computed again.
TEST(EngineStates, AMaskThatComesLateCostsNoPrompt) {
  Request request = greedy(toy_prompt(50, 1), 10);
  request.watcher = std::make_shared<LateWatcher>(3);
  RecurrentToy model;
  Engine engine(model, {}, options_of());
  EXPECT_EQ(run_all(engine, {request})[0].ids.size(), 10u);
  EXPECT_LE(engine.stats().metrics.iteration_tokens.sum(), 50 + 10 + 2);
}

// A state behind some of a step's tokens does not exist: what came true of drafts is computed again
// from the state before them.
TEST(EngineStates, DraftsInEveryPattern) {
  for (const uint64_t seed : {100, 200}) {
    const std::vector<Request> requests = mixed_requests(seed);
    const std::vector<Transcript> expected = each_alone(requests);
    for (const int32_t k : {1, 2, 3, 7}) {
      for (const uint32_t pattern : {0u, 1u, 0b0110111u, 0b1011111u, ~0u}) {
        const auto drafter = std::make_shared<ScriptedDrafter>(requests, expected, pattern);
        RecurrentToy model;
        Engine engine(model, {}, speculative(options_of(), drafter, k));
        const std::vector<Transcript> found = run_all(engine, requests);
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(found[i] == expected[i]) << "k " << k << ", pattern " << pattern << ", " << i;
        }
        const SpeculationCounts& counts = engine.stats().speculation;
        EXPECT_GT(counts.num_drafts, 0);
        EXPECT_EQ(counts.num_accepted_tokens > 0, pattern != 0);
        expect_idle(engine);
      }
    }
  }
}

TEST(EngineStates, PrefixHitsAfterRejectionsAtEveryOffset) {
  for (int32_t k = 1; k <= 4; ++k) {
    for (int32_t offset = 0; offset < 8; ++offset) {
      Request request{.prompt = toy_prompt(16 + offset, 3), .max_tokens = 30};
      request.sampling.seed = 11;
      const std::vector<Transcript> expected = each_alone({request});
      const auto drafter = std::make_shared<ScriptedDrafter>(
          std::vector{request}, expected, std::vector{offset % (k + 1), k, 0, k / 2});
      RecurrentToy model;
      Engine engine(model, {}, speculative(options_of(), drafter, k));
      EXPECT_TRUE(run_all(engine, {request})[0] == expected[0]);
      std::vector<int32_t> text = request.prompt;
      text.insert(text.end(), expected[0].ids.begin(), expected[0].ids.end());
      for (int32_t cut = static_cast<int32_t>(text.size()) - 6; cut <= std::ssize(text); ++cut) {
        Request next{.prompt = {text.begin(), text.begin() + cut}, .max_tokens = 6};
        next.sampling = {.temperature = 0, .logprobs = 3};
        const Transcript found = run_all(engine, {next})[0];
        EXPECT_TRUE(found == alone(next)) << "cut " << cut;
      }
    }
  }
}

TEST(EngineStates, RandomLivesKeepTheirText) {
  int64_t num_preemptions = 0, num_hits = 0, num_rejected = 0;
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Lives lives(seed, [](const Request& request) { return alone(request); });
    RecurrentToy model;
    lives.run(model, {}, options_of(), /*rounds=*/12);
    num_preemptions += lives.num_preemptions;
    num_hits += lives.num_hits;
    num_rejected += lives.num_rejected;
    if (HasFailure()) break;
  }
  EXPECT_GT(num_preemptions, 10);
  EXPECT_GT(num_hits, 1000);
  EXPECT_GT(num_rejected, 50);
}

TEST(EngineStates, AsManySequencesRunAsThereAreStatesFor) {
  EngineOptions options = options_of();
  RecurrentToy model;
  options.max_model_len = 64;
  const int64_t one = Engine::kv_bytes_for(model.info(), options, 64, 1);
  options.kv_bytes = one;
  Engine engine(model, {}, options);
  EXPECT_EQ(engine.kv_plan().options.max_num_seqs, 1);
  EXPECT_EQ(engine.kv_plan().state_slots, 2);
  const std::vector<Request> requests(3, greedy(toy_prompt(20, 1)));
  for (const Transcript& found : run_all(engine, requests)) {
    EXPECT_TRUE(found == alone(requests[0]));
  }
  options.kv_bytes = 100;
  try {
    Engine none(model, {}, options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kMemory);
    EXPECT_THAT(e.what(), testing::HasSubstr("for the states of recurrent layers"));
    EXPECT_THAT(e.what(), testing::HasSubstr("no other setting makes the states smaller"));
  }
}

}  // namespace
}  // namespace nibble
