// gpt-oss in the engine: the same bits alone or in a batch of sixteen, in chunks of any size beside
// others, after preemption; on dummy weights of a small config and on the model that ships.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "cpu/thread_pool.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/speculation_testing.h"
#include "models/model.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr char kSmallConfig[] = R"({
  "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
  "num_hidden_layers": 3, "hidden_size": 64, "head_dim": 16,
  "num_attention_heads": 4, "num_key_value_heads": 2,
  "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32,
  "sliding_window": 24, "vocab_size": 300, "max_position_embeddings": 8192,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
  "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 2.0,
  "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
  "original_max_position_embeddings": 4096}})";

const std::string kShipped = std::string(NIBBLE_SOURCE_DIR) + "/models/nibble-tiny-gpt-oss";

using ops::ActFormat;

// A model with the threads and formats it runs on, as the command line sets them.
struct Loaded {
  Loaded(const std::string& path, LoadFormat format, ActFormat activations, int threads)
      : pool(threads) {
    cx.pool = &pool;
    cx.kernels.activations = activations;
    if (activations == ActFormat::kBF16) cx.activations = DType::kBF16;
    model = load_model(cx, path, {.format = format, .seed = 3, .progress = {}});
  }
  int32_t vocab() const { return model->info().vocab_size; }

  cpu::ThreadPool pool;
  ops::Ctx cx;
  std::unique_ptr<Model> model;
};

std::unique_ptr<Loaded> load_small(ActFormat activations) {
  const fs::path file = fs::path(testing::TempDir()) / "engine_gpt_oss" / "config.json";
  fs::create_directories(file.parent_path());
  std::ofstream(file) << kSmallConfig;
  return std::make_unique<Loaded>(file.string(), LoadFormat::kDummy, activations, 1);
}

std::unique_ptr<Loaded> load_shipped(ActFormat activations) {
  return std::make_unique<Loaded>(kShipped, LoadFormat::kAuto, activations, 2);
}

EngineOptions engine_options(DType kv_dtype) {
  return {.max_num_seqs = 16,
          .max_num_batched_tokens = 64,
          .max_model_len = 512,
          .kv_dtype = kv_dtype,
          .kv_bytes = int64_t{256} << 20};
}

std::vector<Transcript> run(Loaded& loaded, const EngineOptions& options,
                            const std::vector<Request>& requests) {
  Engine engine(*loaded.model, loaded.cx, options);
  return run_all(engine, requests);
}

// Half greedy, half drawn with seeds; lengths on both sides of window and chunk.
std::vector<Request> sixteen_requests(int32_t vocab) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 16; ++i) {
    Request r{.prompt = toy_prompt(1 + i * 11, i, vocab), .max_tokens = 24 - i};
    r.sampling.logprobs = 3;
    r.sampling.seed = 7 + i;
    if (i % 2 == 0) r.sampling.temperature = 0;
    if (i % 4 == 3) r.sampling.top_p = 0.9f;
    requests.push_back(r);
  }
  return requests;
}

struct Setting {
  const char* name;
  std::unique_ptr<Loaded> (*load)(ActFormat activations);
  ActFormat activations;
  DType kv_dtype;
};

class GptOssEngine : public testing::TestWithParam<Setting> {};

TEST_P(GptOssEngine, AloneInABatchOfSixteenAndAfterPreemption) {
  const auto loaded = GetParam().load(GetParam().activations);
  const std::vector<Request> requests = sixteen_requests(loaded->vocab());
  const EngineOptions options = engine_options(GetParam().kv_dtype);
  const std::vector<Transcript> batched = run(*loaded, options, requests);

  EngineOptions tight = options;
  tight.max_model_len = 192;
  tight.kv_bytes = Engine::kv_bytes_for(loaded->model->info(), tight, 192, 1);
  Engine engine(*loaded->model, loaded->cx, tight);
  const std::vector<Transcript> preempted = run_all(engine, requests);
  EXPECT_GE(engine.stats().num_preemptions, 1);

  for (size_t i = 0; i < requests.size(); ++i) {
    const Transcript alone = run_alone(*loaded->model, loaded->cx, options, requests[i]);
    EXPECT_EQ(alone.ids.size(), 24 - i);
    EXPECT_TRUE(alone == batched[i]) << "request " << i;
    EXPECT_TRUE(alone == preempted[i]) << "request " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, GptOssEngine,
    testing::Values(Setting{"small_float", load_small, ActFormat::kFloat, DType::kF32},
                    Setting{"small_exact", load_small, ActFormat::kBF16, DType::kBF16},
                    Setting{"small_fp8", load_small, ActFormat::kBF16, DType::kF8E4M3},
                    Setting{"small_int8", load_small, ActFormat::kInt8, DType::kBF16},
                    Setting{"shipped_float", load_shipped, ActFormat::kFloat, DType::kBF16},
                    Setting{"shipped_exact", load_shipped, ActFormat::kBF16, DType::kBF16},
                    Setting{"shipped_int8_fp8", load_shipped, ActFormat::kInt8, DType::kF8E4M3}),
    [](const auto& info) { return info.param.name; });

// Drafts, right and wrong, change no bit: in batches, chunks, after preemption and prefix hits.
TEST_P(GptOssEngine, SpeculationChangesNothing) {
  const auto loaded = GetParam().load(GetParam().activations);
  const std::vector<Request> requests = sixteen_requests(loaded->vocab());
  const EngineOptions options = engine_options(GetParam().kv_dtype);
  const std::vector<Transcript> expected = run(*loaded, options, requests);
  const bool is_main = std::string(GetParam().name) == "shipped_exact";
  for (int32_t k = is_main ? 1 : 3; k <= (is_main ? 7 : 3); ++k) {
    for (const std::vector<int32_t>& right : {std::vector{k}, {0, k, k / 2, -1, 1}}) {
      if (right.size() == 1 && k % 3 != 1) continue;
      const auto drafter = std::make_shared<ScriptedDrafter>(requests, expected, right);
      EngineOptions some = speculative(options, drafter, k);
      some.max_num_batched_tokens = 64 - 5 * k;  // prompts in other chunks
      Engine engine(*loaded->model, loaded->cx, some);
      EXPECT_TRUE(run_all(engine, requests) == expected) << "k " << k;
      EXPECT_TRUE(run_all(engine, requests) == expected) << "after prefix hits, k " << k;
      EXPECT_GT(engine.stats().prefix_cache_hits, 0);
      EXPECT_GT(engine.stats().speculation.num_accepted_tokens, 0);
    }
    const auto drafter =
        std::make_shared<ScriptedDrafter>(requests, expected, std::vector{k, 0, 1, k});
    EngineOptions tight = speculative(options, drafter, k);
    tight.max_model_len = 192;
    tight.kv_bytes = Engine::kv_bytes_for(loaded->model->info(), tight, 192, 1);
    Engine engine(*loaded->model, loaded->cx, tight);
    EXPECT_TRUE(run_all(engine, requests) == expected) << "preempted, k " << k;
    EXPECT_GE(engine.stats().num_preemptions, 1);
  }
}

// The drafters that ship, fixed and adaptive, on prompts that repeat themselves.
TEST_P(GptOssEngine, NgramAndSuffixChangeNothing) {
  const auto loaded = GetParam().load(GetParam().activations);
  std::vector<Request> requests = sixteen_requests(loaded->vocab());
  for (Request& request : requests) {
    const std::vector<int32_t> once = request.prompt;
    request.prompt.insert(request.prompt.end(), once.begin(), once.end());
  }
  const EngineOptions options = engine_options(GetParam().kv_dtype);
  const std::vector<Transcript> expected = run(*loaded, options, requests);
  using Method = SpeculationOptions::Method;
  for (const Method method : {Method::kNgram, Method::kSuffix}) {
    for (const bool is_adaptive : {false, true}) {
      EngineOptions some = options;
      some.speculation = {.method = method,
                          .num_tokens = 5,
                          .is_adaptive = is_adaptive,
                          .ngram_min = 1,
                          .ngram_max = 4};
      Engine engine(*loaded->model, loaded->cx, some);
      EXPECT_TRUE(run_all(engine, requests) == expected) << is_adaptive;
      if (method == Method::kSuffix) {  // past answers are known now
        EXPECT_TRUE(run_all(engine, requests) == expected) << "again " << is_adaptive;
      }
      EXPECT_TRUE(is_adaptive || engine.stats().speculation.num_draft_tokens > 0);
    }
  }
}

// Three answers to one prompt, each with a seed of its own, are what each is alone; after a hit
// too.
TEST_P(GptOssEngine, ForksOfOnePrefill) {
  const auto loaded = GetParam().load(GetParam().activations);
  const EngineOptions options = engine_options(GetParam().kv_dtype);
  std::vector<Request> requests(3,
                                {.prompt = toy_prompt(53, 1, loaded->vocab()), .max_tokens = 20});
  std::vector<Transcript> alone;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.seed = 40 + i;
    requests[i].sampling.logprobs = 2;
    alone.push_back(run_alone(*loaded->model, loaded->cx, options, requests[i]));
  }
  Engine engine(*loaded->model, loaded->cx, options);
  for (int round = 0; round < 2; ++round) {
    const std::vector<Transcript> forks = run_forks(engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(forks[i].cached_tokens, round * 48);
      EXPECT_TRUE(forks[i] == alone[i]) << "fork " << i;
    }
    EXPECT_NE(forks[0].ids, forks[1].ids);
  }
  // Once 52 tokens, and the last of the prompt by each; then what was not cached.
  EXPECT_EQ(engine.stats().prompt_tokens, (52 + 3) + (4 + 3));
}

// After a hit at every page boundary of a prompt, across the window's edge, the text and its
// log-probabilities are those of a prompt computed whole.
TEST_P(GptOssEngine, SameTextAfterAPrefixHitAtEveryPage) {
  const auto loaded = GetParam().load(GetParam().activations);
  const EngineOptions options = engine_options(GetParam().kv_dtype);
  Engine engine(*loaded->model, loaded->cx, options);
  const std::vector<int32_t> first = toy_prompt(200, 1, loaded->vocab());
  run_all(engine, {{.prompt = first, .max_tokens = 1}});
  std::vector<Request> requests;
  std::vector<Transcript> found;
  for (int32_t length = 0; length <= 192; length += options.page_size) {
    Request request{.prompt = toy_prompt(length + 20, 2, loaded->vocab()), .max_tokens = 8};
    std::copy_n(first.begin(), length, request.prompt.begin());
    request.sampling.temperature = 0;
    request.sampling.logprobs = 3;
    requests.push_back(request);
    found.push_back(run_all(engine, {request})[0]);
    EXPECT_EQ(found.back().cached_tokens, length);
  }
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_TRUE(found[i] == run_alone(*loaded->model, loaded->cx, options, requests[i])) << i;
}

// Six thousand tokens scored in chunks of `chunk`, beside `num_decodes` other sequences.
Transcript score_in_chunks(Loaded& loaded, const Request& scored, int32_t chunk,
                           int32_t num_decodes) {
  EngineOptions options = engine_options(DType::kBF16);
  options.max_model_len = 6144;
  options.max_num_seqs = num_decodes + 1;
  options.max_num_batched_tokens = chunk + num_decodes;
  std::vector<Request> requests;
  for (int32_t i = 0; i < num_decodes; ++i) {
    requests.push_back({.prompt = toy_prompt(3, i, loaded.vocab()), .max_tokens = 800});
  }
  requests.push_back(scored);
  return run(loaded, options, requests).back();
}

TEST(GptOssChunks, SixThousandTokensAloneAndBesideDecodes) {
  const auto loaded = load_small(ActFormat::kBF16);
  const Request scored{.prompt = toy_prompt(6000, 3, loaded->vocab()), .prompt_logprobs = 2};
  const Transcript whole = score_in_chunks(*loaded, scored, 4096, 0);
  ASSERT_EQ(whole.scores.size(), 6000u);
  for (int32_t chunk : {1, 7, 64, 4096}) {
    for (int32_t num_decodes : {0, 3}) {
      if (chunk == 4096 && num_decodes == 0) continue;
      EXPECT_TRUE(score_in_chunks(*loaded, scored, chunk, num_decodes) == whole)
          << "chunk " << chunk << ", decodes " << num_decodes;
    }
  }
}

// The shipped model at the length of a long chat, past window and original context.
TEST(GptOssChunks, ShippedModelSixThousandTokens) {
  const auto loaded = load_shipped(ActFormat::kBF16);
  const Request scored{.prompt = toy_prompt(6000, 3, loaded->vocab()), .prompt_logprobs = 1};
  const Transcript whole = score_in_chunks(*loaded, scored, 4096, 0);
  ASSERT_EQ(whole.scores.size(), 6000u);
  EXPECT_TRUE(score_in_chunks(*loaded, scored, 64, 2) == whole);
}

}  // namespace
}  // namespace nibble
