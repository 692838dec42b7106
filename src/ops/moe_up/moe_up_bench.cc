// gpt-oss-20b's experts: 32 of them, 4 chosen per token. Rows of the table that run here x tokens.
#include "ops/moe_up/moe_up.h"

#include "ops/bench_problem.h"

namespace nibble::ops {
namespace {

void run(benchmark::State& state, const MoeUpKernel* row) {
  const MoeUpDesc desc{2880, 2880, 32, 4, Format::kMxfp4};
  const int64_t tokens = state.range(0);
  Random random(1);
  static TestWeight w(random, desc.format, desc.experts, 2 * desc.width, desc.hidden);
  if (w.view.layout != row->layout) w.pack(row->layout);
  Floats h(random, tokens, desc.hidden), u(tokens * desc.top_k, desc.width);
  TestCtx test(DType::kF32, scratch_bytes(desc, tokens, bench_threads()), bench_threads());
  // New routing every time, so that a decode does not find its experts in the cache.
  TestRouting routing(tokens, desc.experts, desc.top_k);
  int64_t distinct = 0;
  for (auto _ : state) {
    state.PauseTiming();
    routing.randomize(random);
    distinct += desc.experts - std::count(routing.counts.begin(), routing.counts.end(), 0);
    state.ResumeTiming();
    row->run(test.cx, u.tensor(), h.tensor(), routing.view, w.view, kClampedSwiglu);
  }
  const int64_t mean = distinct / std::max<int64_t>(1, state.iterations());
  report(state, bytes(desc, tokens, mean), flops(desc, tokens));
}

const bool kRegistered = [] {
  const MoeUpDesc desc{2880, 2880, 32, 4, Format::kMxfp4};
  auto rows = kernels_here(moe_up_kernels(), desc);
  // The float rows first: the weight is packed once, and not back.
  for (const MoeUpKernel* row : kernels_here(moe_up_kernels(), desc, ActFormat::kInt8))
    rows.push_back(row);
  for (const MoeUpKernel* row : rows)
    benchmark::RegisterBenchmark((std::string("moe_up/") + row->name).c_str(), run, row)
        ->Arg(1)
        ->Arg(4)
        ->Arg(8)
        ->Arg(16)
        ->Arg(64)
        ->Arg(512)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace nibble::ops
