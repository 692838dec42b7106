// What a step on the GPU asks of the driver: nothing of memory, and to wait once; and that the next
// has begun by then. The linker leads the program's calls of the CUDA runtime through here
// (CMakeLists.txt).
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>

#include "engine/engine.h"
#include "engine/engine_testing.h"
#include "engine/gpu_test_model.h"

namespace nibble {
namespace {

struct Calls {
  int memory = 0;  // that allocate or free, on the device or page-locked, and graphs made
  int waits = 0;
  int steps = 0;  // begun: each records an event
  int ahead = 0;  // those behind which the next had been begun when they were waited for
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
  return ++calls.waits, __real_cudaEventSynchronize(e);
}
int __wrap_cudaDeviceSynchronize() { return ++calls.waits, __real_cudaDeviceSynchronize(); }
}
// NOLINTEND(bugprone-reserved-identifier)

namespace {

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
    Engine engine(*loaded.model, loaded.cx,
                  {.max_num_seqs = 100,
                   .max_num_batched_tokens = 128,
                   .max_model_len = 512,
                   .kv_bytes = int64_t{64} << 20,
                   .prefix_caching = false});
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

}  // namespace
}  // namespace nibble
