// The same bits whatever else is in the step: alone or in a batch, in chunks of any size, after
// preemption. The model computes each token by itself, so any difference would be the engine's.
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/engine_testing.h"

namespace nibble {
namespace {

// Sixteen requests that differ in length, sampling and what they want to know.
std::vector<Request> sixteen_requests() {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 16; ++i) {
    Request r{.prompt = toy_prompt(1 + i * 13, i), .max_tokens = 40 - i};
    r.sampling.logprobs = i % 4;
    if (i % 3 == 0) r.sampling.temperature = 0;
    if (i % 3 == 1) r.sampling.temperature = 0.8f, r.sampling.top_p = 0.9f;
    if (i % 3 == 2) r.sampling.top_k = 20, r.sampling.min_p = 0.01f;
    if (i % 4 == 3) r.sampling.repetition_penalty = 1.3f, r.sampling.frequency_penalty = 0.2f;
    if (i % 5 == 4) r.prompt_logprobs = 2;
    r.sampling.seed = 1000 + i % 6;
    requests.push_back(r);
  }
  return requests;
}

TEST(Exact, AloneOrInABatchOfSixteen) {
  const std::vector<Request> requests = sixteen_requests();
  ToyModel model;
  Engine engine(model, {}, toy_options());
  const std::vector<Transcript> batched = run_all(engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(batched[i] == run_alone(toy_options(), requests[i])) << "request " << i;
    EXPECT_EQ(batched[i].ids.size(), 40 - i);
  }
}

TEST(Exact, OtherSeedsGiveOtherText) {
  Request request{.prompt = toy_prompt(20, 1), .max_tokens = 40};
  request.sampling.seed = 1;
  const Transcript one = run_alone(toy_options(), request);
  request.sampling.seed = 2;
  const Transcript two = run_alone(toy_options(), request);
  request.sampling.seed.reset();
  const Transcript some = run_alone(toy_options(), request);
  const Transcript other = run_alone(toy_options(), request);
  EXPECT_NE(one.ids, two.ids);
  EXPECT_NE(some.ids, other.ids);  // random seeds: the same text has odds below 1 to 2^40
}

TEST(Exact, PreemptedOrNot) {
  const std::vector<Request> requests = sixteen_requests();
  EngineOptions tight = toy_options();
  tight.max_model_len = 256;
  // Full pages for two sequences of 256 tokens, where the sixteen want 3,000.
  ToyModel model;
  tight.kv_bytes = Engine::kv_bytes_for(model.info(), tight, 256, 2);
  Engine engine(model, {}, tight);
  const std::vector<Transcript> preempted = run_all(engine, requests);
  EXPECT_GE(engine.stats().num_preemptions, 3);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(preempted[i] == run_alone(toy_options(), requests[i])) << "request " << i;
  }
  EXPECT_EQ(engine.stats().kv_usage, 0);
}

struct ChunkCase {
  int32_t chunk;
  int32_t num_decodes;
};

std::vector<Transcript> score_in_chunks(const Request& scored, const ChunkCase& c) {
  EngineOptions options = toy_options();
  options.max_model_len = 8192;
  options.max_num_seqs = c.num_decodes + 1;
  options.max_num_batched_tokens = c.chunk + c.num_decodes;
  ToyModel model;
  Engine engine(model, {}, options);
  std::vector<Request> requests;
  for (int32_t i = 0; i < c.num_decodes; ++i) {
    // Long enough to decode beside every chunk of the first 2,000 tokens.
    requests.push_back({.prompt = toy_prompt(3, i), .max_tokens = 2000});
  }
  requests.push_back(scored);
  return run_all(engine, requests);
}

TEST(Exact, SixThousandTokensInChunksOfAnySizeAloneAndBesideDecodes) {
  const Request scored{.prompt = toy_prompt(6000, 3), .prompt_logprobs = 2};
  const Transcript whole = score_in_chunks(scored, {.chunk = 6000, .num_decodes = 0}).back();
  ASSERT_EQ(whole.scores.size(), 6000u);
  for (int32_t chunk : {1, 7, 64, 4096}) {
    for (int32_t num_decodes : {0, 3}) {
      const Transcript t =
          score_in_chunks(scored, {.chunk = chunk, .num_decodes = num_decodes}).back();
      EXPECT_TRUE(t == whole) << "chunk " << chunk << ", decodes " << num_decodes;
    }
  }
}

}  // namespace
}  // namespace nibble
