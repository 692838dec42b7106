// gpt-oss's bf16 output projection of attention. Rows of the table that run here x tokens.
#include "ops/out_proj/out_proj.h"

#include <memory>

#include "ops/bench_problem.h"

namespace nibble::ops {
namespace {

constexpr OutProjDesc kDesc{2880, 4096, Format::kBF16};
constexpr int kLayers = 8;  // as many as it takes to leave the cache between two runs

void run(benchmark::State& state, const OutProjKernel* row) {
  const int64_t tokens = state.range(0);
  Random random(1);
  static const TestWeight w(random, kDesc.format, kLayers, kDesc.hidden, kDesc.width);
  Floats att(random, tokens, kDesc.width), d(tokens, kDesc.hidden);
  TestCtx test(DType::kF32, scratch_bytes(kDesc, tokens, bench_threads()), bench_threads());
  const Step step{.num_tokens = static_cast<int32_t>(tokens)};
  int64_t layer = 0;
  for (auto _ : state)
    row->run(test.cx, d.tensor(), att.tensor(), w.view.expert(layer++ % kLayers), step);
  report(state, bytes(kDesc, tokens), flops(kDesc, tokens));
}

const bool kRegistered = [] {
  for (const OutProjKernel* row : kernels_here(out_proj_kernels(), kDesc))
    benchmark::RegisterBenchmark((std::string("out_proj/") + row->name).c_str(), run, row)
        ->Arg(1)
        ->Arg(4)
        ->Arg(16)
        ->Arg(64)
        ->Arg(512)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace nibble::ops
