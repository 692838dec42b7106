// What a step on the GPU asks of the driver: nothing of memory, and to wait once; and that the next
// has begun by then, or what a head is fed of it. The linker leads the program's calls of the CUDA
// runtime through here (CMakeLists.txt).
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>

#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/gpu_test_model.h"
#include "models/draft_head.h"

namespace nibble {
namespace {

struct Calls {
  int memory = 0;  // that allocate or free, on the device or page-locked, and graphs made
  int waits = 0;
  int steps = 0;  // begun: each records an event
  int ahead = 0;  // those behind which the next had been begun when they were waited for
  int graphs = 0;
  int kernels = 0;    // launched since the last graph
  int fed_ahead = 0;  // waited for with some
} calls;

}  // namespace

// cudaError_t is an int, streams and events are pointers.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" {
int __real_cudaMalloc(void**, size_t);
int __real_cudaMallocHost(void**, size_t);
int __real_cudaFree(void*);
int __real_cudaFreeHost(void*);
int __real_cudaGraphInstantiate(void**, void*, unsigned long long);
int __real_cudaGraphLaunch(void*, void*);
int __real_cudaLaunchKernelExC(const void*, const void*, void**);
int __real_cudaEventRecordWithFlags(void*, void*, unsigned);
int __real_cudaMemcpy(void*, const void*, size_t, int);
int __real_cudaMemset(void*, int, size_t);
int __real_cudaStreamSynchronize(void*);
int __real_cudaEventSynchronize(void*);
int __real_cudaDeviceSynchronize();

int __wrap_cudaMalloc(void** p, size_t n) { return ++calls.memory, __real_cudaMalloc(p, n); }
int __wrap_cudaMallocHost(void** p, size_t n) {
  return ++calls.memory, __real_cudaMallocHost(p, n);
}
int __wrap_cudaFree(void* p) { return ++calls.memory, __real_cudaFree(p); }
int __wrap_cudaFreeHost(void* p) { return ++calls.memory, __real_cudaFreeHost(p); }
int __wrap_cudaGraphInstantiate(void** exec, void* graph, unsigned long long flags) {
  return ++calls.memory, __real_cudaGraphInstantiate(exec, graph, flags);
}
int __wrap_cudaGraphLaunch(void* exec, void* s) {
  calls.kernels = 0;
  return ++calls.graphs, __real_cudaGraphLaunch(exec, s);
}
int __wrap_cudaLaunchKernelExC(const void* config, const void* kernel, void** arguments) {
  return ++calls.kernels, __real_cudaLaunchKernelExC(config, kernel, arguments);
}
int __wrap_cudaEventRecordWithFlags(void* e, void* s, unsigned flags) {
  return ++calls.steps, __real_cudaEventRecordWithFlags(e, s, flags);
}
int __wrap_cudaMemcpy(void* to, const void* from, size_t n, int kind) {
  return ++calls.waits, __real_cudaMemcpy(to, from, n, kind);
}
int __wrap_cudaMemset(void* p, int value, size_t n) {
  return ++calls.waits, __real_cudaMemset(p, value, n);
}
int __wrap_cudaStreamSynchronize(void* s) { return ++calls.waits, __real_cudaStreamSynchronize(s); }
int __wrap_cudaEventSynchronize(void* e) {
  if (calls.steps > calls.waits + 1) ++calls.ahead;
  if (calls.kernels > 0) ++calls.fed_ahead;
  return ++calls.waits, __real_cudaEventSynchronize(e);
}
int __wrap_cudaDeviceSynchronize() { return ++calls.waits, __real_cudaDeviceSynchronize(); }
}
// NOLINTEND(bugprone-reserved-identifier)

namespace {

EngineOptions options_for(int32_t max_num_seqs) {
  return {.max_num_seqs = max_num_seqs,
          .max_num_batched_tokens = 128,
          .max_model_len = 512,
          .kv_bytes = int64_t{64} << 20,
          .prefix_caching = false};
}

// Half of them greedy, half drawn; of two pages and more each.
std::vector<Request> requests(int32_t count) {
  std::vector<Request> all;
  for (int32_t i = 0; i < count; ++i) {
    all.push_back({.prompt = toy_prompt(5, i, 3072), .max_tokens = 40});
    all.back().sampling.temperature = i % 2;
  }
  return all;
}

TEST(GpuCalls, AStepWaitsOnceAndAllocatesNothing) {
  if (std::getenv("NIBBLE_SMALL_TESTS") != nullptr) GTEST_SKIP() << "other tests run its kernels";
  GpuTestModel loaded(Format::kMxfp4, /*exact=*/false);
  for (const int32_t sequences : {1, 8, 100}) {
    Engine engine(*loaded.model, loaded.cx, options_for(100));
    EXPECT_GT(calls.memory, 0);                                        // they are counted
    for (int i = 0; i < 2; ++i) run_all(engine, requests(sequences));  // records the graphs
    const int64_t steps_before = engine.stats().num_steps;
    calls = {};
    run_all(engine, requests(sequences));
    const Calls seen = calls;
    const int64_t steps = engine.stats().num_steps - steps_before;
    EXPECT_GE(steps, 40);
    EXPECT_EQ(seen.memory, 0) << sequences;
    EXPECT_EQ(seen.waits, steps) << sequences;
    // All but the last of those that decode, where all came in one step: also where pages turn.
    if (sequences <= 8)
      EXPECT_EQ(seen.ahead, steps - 2) << sequences;
    else
      EXPECT_GE(seen.ahead, 30);
  }
}

// All rows of a step that the host must see are on their way when it looks at the first.
TEST(GpuCalls, RowsComeWhileOthersAreLookedAt) {
  if (std::getenv("NIBBLE_SMALL_TESTS") != nullptr) GTEST_SKIP() << "other tests run its kernels";
  GpuTestModel loaded(Format::kMxfp4, /*exact=*/false);
  Engine engine(*loaded.model, loaded.cx, options_for(4));
  std::vector<Request> seen = requests(4);
  for (Request& r : seen) r.sampling.logprobs = 2;
  run_all(engine, seen);  // records the graphs
  const int64_t steps_before = engine.stats().num_steps;
  calls = {};
  run_all(engine, seen);
  const int64_t steps = engine.stats().num_steps - steps_before;
  EXPECT_EQ(calls.waits, 5 * steps);  // for the step, and for each row
  EXPECT_EQ(calls.ahead, 3 * steps);  // but for the step and for the last row
}

// Bans one id.
struct CountedMask : TokenWatcher {
  int asked = 0;
  Watch accept(int32_t) override { return Watch::kGoOn; }
  void rollback(int) override {}
  bool mask(std::span<uint32_t> bits) override {
    ++asked;
    bits[0] &= ~uint32_t{1};
    return true;
  }
};

// Once to know whether the host must see the row, once for what may be said.
TEST(GpuCalls, AStepAsksTwiceForAMask) {
  if (std::getenv("NIBBLE_SMALL_TESTS") != nullptr) GTEST_SKIP() << "other tests run its kernels";
  GpuTestModel loaded(Format::kMxfp4, /*exact=*/false);
  Engine engine(*loaded.model, loaded.cx, options_for(4));
  const auto masks = std::make_shared<CountedMask>();
  Request masked = requests(1)[0];
  masked.watcher = masks;
  EXPECT_EQ(run_all(engine, {masked})[0].ids.size(), 40u);
  EXPECT_EQ(masks->asked, 2 * 40);
}

// While a step that verifies drafts runs, the head is fed what it will find: whenever the host
// waits for one, the GPU has what comes next.
TEST(GpuCalls, AStepIsWaitedForBesideItsHead) {
  if (std::getenv("NIBBLE_SMALL_TESTS") != nullptr) GTEST_SKIP() << "other tests run its kernels";
  const std::string models = std::string(NIBBLE_SOURCE_DIR) + "/models/";
  GpuTestModel loaded(Format::kBF16, /*exact=*/false, models + "nibble-tiny-gpt-oss");
  const std::shared_ptr<DraftHead> head = load_draft_head(
      loaded.cx, {models + "nibble-tiny-gpt-oss-eagle3"}, *loaded.model, loaded.load);
  EngineOptions options = options_for(2);
  options.speculation = {.method = SpeculationOptions::Method::kHead,
                         .num_tokens = 3,
                         .is_adaptive = false,
                         .head_group = head->model().info().groups[0],
                         .head = head};
  Engine engine(*loaded.model, loaded.cx, options);
  for (const int32_t sequences : {1, 2}) {
    std::vector<Request> greedy = requests(sequences);
    for (Request& r : greedy) r.sampling.temperature = 0;
    for (int i = 0; i < 3; ++i) run_all(engine, greedy);  // records the graphs
    const SpeculationCounts before = engine.stats().speculation;
    calls = {};
    run_all(engine, greedy);
    const int64_t drafts = (engine.stats().speculation - before).num_drafts;
    EXPECT_GE(drafts, 10 * sequences);
    EXPECT_EQ(calls.memory, 0);
    EXPECT_GE(calls.fed_ahead * sequences, drafts);
  }
}

}  // namespace
}  // namespace nibble
