// gpt-oss on the GPU, in the engine, under --exact: the same bits alone, in a batch, in chunks,
// after preemption and after a prefix hit. What the CPU and transformers compute is compared in
// tests/goldens_gpu_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include "cuda/random_fill.h"
#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/gpu_test_model.h"

namespace nibble {
namespace {

EngineOptions engine_options() {
  return {.max_num_seqs = 16,
          .max_num_batched_tokens = 64,
          .max_model_len = 512,
          .kv_bytes = int64_t{64} << 20};
}

class GptOssGpu : public testing::TestWithParam<Format> {};

// Greedy ones and drawn ones, of both some whose logits come to the host.
std::vector<Request> sixteen_requests() {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 16; ++i) {
    Request r{.prompt = toy_prompt(1 + i * 11, i, 3072), .max_tokens = 40 - i};
    r.sampling.seed = 7 + i;
    if (i % 4 == 1) r.sampling.logprobs = 3;
    if (i % 2 == 0) r.sampling.temperature = 0;
    requests.push_back(r);
  }
  return requests;
}

TEST_P(GptOssGpu, AloneInABatchAfterPreemptionAndAfterAPrefixHit) {
  GpuTestModel loaded(GetParam());
  const std::vector<Request> requests = sixteen_requests();
  const EngineOptions options = engine_options();
  Engine engine(*loaded.model, loaded.cx, options);
  const std::vector<Transcript> batched = run_all(engine, requests);
  const std::vector<Transcript> again = run_all(engine, requests);  // prefixes are known now
  EXPECT_GT(engine.stats().prefix_cache_hits, 0);

  EngineOptions tight = options;
  tight.max_model_len = 224;
  tight.kv_bytes = Engine::kv_bytes_for(loaded.model->info(), tight, 224, 1);
  Engine small(*loaded.model, loaded.cx, tight);
  const std::vector<Transcript> preempted = run_all(small, requests);
  EXPECT_GE(small.stats().num_preemptions, 1);

  EngineOptions fine = options;
  fine.max_num_batched_tokens = 17;
  EngineOptions eager = options;
  eager.graphs = false;
  // Under tools that slow kernels down a hundredfold some of them.
  const size_t every = std::getenv("NIBBLE_SMALL_TESTS") == nullptr ? 1 : 8;
  for (size_t i = 0; i < requests.size(); i += every) {
    const Transcript alone = run_alone(*loaded.model, loaded.cx, options, requests[i]);
    EXPECT_EQ(alone.error, "");
    EXPECT_EQ(alone.ids.size(), 40 - i);
    EXPECT_TRUE(alone == batched[i]) << "batched " << i;
    EXPECT_TRUE(alone == again[i]) << "after a prefix hit " << i;
    EXPECT_TRUE(alone == preempted[i]) << "preempted " << i;
    EXPECT_TRUE(alone == run_alone(*loaded.model, loaded.cx, fine, requests[i])) << "chunks " << i;
    EXPECT_TRUE(alone == run_alone(*loaded.model, loaded.cx, eager, requests[i])) << "eager " << i;
  }
}

// More sequences than graphs are recorded for at once.
TEST_P(GptOssGpu, AloneAmongEighty) {
  if (std::getenv("NIBBLE_SMALL_TESTS") != nullptr) GTEST_SKIP() << "other tests run its kernels";
  GpuTestModel loaded(GetParam());
  EngineOptions options = engine_options();
  options.max_num_seqs = 80;
  options.max_num_batched_tokens = 128;
  std::vector<Request> requests;
  for (int32_t i = 0; i < 80; ++i) {
    requests.push_back({.prompt = toy_prompt(1 + i % 23, i, 3072), .max_tokens = 60 - i % 7});
    requests.back().sampling.seed = i;
    requests.back().sampling.temperature = i % 2;
  }
  Engine engine(*loaded.model, loaded.cx, options);
  const std::vector<Transcript> all = run_all(engine, requests);
  EXPECT_EQ(engine.stats().num_preemptions, 0);
  for (size_t i = 0; i < requests.size(); i += 9)
    EXPECT_TRUE(run_alone(*loaded.model, loaded.cx, options, requests[i]) == all[i]) << i;
}

// Eighty of one length, so that most steps begin while the one before is reported, beyond what
// graphs are recorded for. Some end by an id that only the report shows, and one comes when they
// run.
TEST_P(GptOssGpu, StepsBegunAheadPassOverWhatHasEnded) {
  GpuTestModel loaded(GetParam());
  EngineOptions options = engine_options();
  options.max_num_seqs = 96;
  options.max_num_batched_tokens = 128;
  options.prefix_caching = false;
  std::vector<Request> requests;
  for (int32_t i = 0; i < 80; ++i) {
    requests.push_back({.prompt = toy_prompt(5, i, 3072), .max_tokens = 40});
    requests.back().sampling.temperature = 0;
  }
  Engine engine(*loaded.model, loaded.cx, options);
  const std::vector<Transcript> whole = run_all(engine, requests);

  std::vector<std::shared_ptr<Transcript>> all;
  Request late{.prompt = toy_prompt(9, 100, 3072), .max_tokens = 20};
  late.sampling.temperature = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    Request request = requests[i];
    if (i % 3 == 1) request.stop_ids = {whole[i].ids[5 + i % 20]};
    all.push_back(record(request));
    if (i == 0)
      request.on_output = [&, keep = request.on_output, seen = 0](const Output& output) mutable {
        keep(output);
        if (++seen != 9) return;
        Request request = late;
        all.push_back(record(request));
        EXPECT_TRUE(engine.submit(std::move(request)).ok());
      };
    ASSERT_TRUE(engine.submit(std::move(request)).ok());
  }
  while (engine.step()) {
  }
  ASSERT_EQ(all.size(), requests.size() + 1);
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t> ids = whole[i].ids;
    if (i % 3 == 1) ids.erase(std::ranges::find(ids, ids[5 + i % 20]) + 1, ids.end());
    EXPECT_EQ(all[i]->num_ends, 1) << i;
    EXPECT_EQ(all[i]->ids, ids) << i;
  }
  EXPECT_TRUE(*all.back() == run_alone(*loaded.model, loaded.cx, options, late));
}

// Sixteen requests, at the third token of the first of which something else in the process writes
// where there is no memory: from there on CUDA answers every call with that error.
int run_until_the_gpu_fails() {
  GpuTestModel loaded(Format::kMxfp4);
  Engine engine(*loaded.model, loaded.cx, engine_options());
  std::vector<std::shared_ptr<Transcript>> all;
  for (Request& request : sixteen_requests()) {
    all.push_back(record(request));
    if (all.size() == 1)
      request.on_output = [keep = request.on_output, seen = 0](const Output& output) mutable {
        keep(output);
        if (++seen != 3) return;
        try {
          cuda::random_fill(reinterpret_cast<void*>(16), 4096, {.constant = 1});
        } catch (const std::exception&) {
        }
      };
    if (!engine.submit(std::move(request)).ok()) return 1;
  }
  while (engine.step()) {
  }
  for (const auto& t : all) {
    const bool is_told = t->error.find("the model failed") != std::string::npos &&
                         t->error.find("illegal memory access") != std::string::npos;
    if (t->num_ends != 1 || t->finish != FinishReason::kError || !is_told) return 2;
  }
  Request late{.prompt = toy_prompt(5, 1, 3072), .max_tokens = 1};
  record(late);
  return engine.stats().failed && !engine.submit(std::move(late)).ok() ? 0 : 3;
}

// In a process of its own, which the failure leaves without a GPU; it ends in order.
TEST(GptOssGpuFailure, EndsEveryRequestWithAnError) {
  if (std::getenv("NIBBLE_SMALL_TESTS") != nullptr) GTEST_SKIP() << "tools would report its error";
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(std::exit(run_until_the_gpu_fails()), testing::ExitedWithCode(0),
              "illegal memory access.*; the last op launched was");
}

INSTANTIATE_TEST_SUITE_P(Dense, GptOssGpu, testing::Values(Format::kBF16, Format::kMxfp4),
                         [](const auto& info) { return std::string(format_name(info.param)); });

}  // namespace
}  // namespace nibble
