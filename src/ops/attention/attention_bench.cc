// One full-attention layer of gpt-oss over bf16 pages: decode at a depth, and a prefill chunk.
#include "ops/attention/attention.h"

#include <numeric>

#include "ops/bench_problem.h"

namespace nibble::ops {
namespace {

constexpr AttentionDesc kDesc{64, 8, 64, 0};
constexpr int32_t kPage = 16;

void run(benchmark::State& state, const AttentionKernel* row) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  const auto context = static_cast<int32_t>(state.range(1));
  const int32_t pages = (context + tokens + kPage - 1) / kPage;
  Random random(1);
  std::vector<uint16_t> k = random.bf16s(int64_t{pages} * kDesc.kv_heads * kPage * kDesc.head_dim),
                        v = k, sinks = random.bf16s(kDesc.q_heads);
  std::vector<int32_t> table(pages), positions(tokens);
  std::iota(table.begin(), table.end(), 0);
  std::iota(positions.begin(), positions.end(), context);
  const auto tensor = [&](std::vector<uint16_t>& x) {
    return make_tensor(x.data(), DType::kBF16, {pages, kDesc.kv_heads, kPage, kDesc.head_dim});
  };
  const KvLayer kv{tensor(k), tensor(v), table.data(), pages, kPage};
  const Span span{0, tokens, context, 0};
  const Step step{
      .num_tokens = tokens, .num_spans = 1, .positions = positions.data(), .spans = &span};
  Floats q(random, tokens, 4096), att(tokens, 4096);
  TestCtx test(DType::kF32, scratch_bytes(kDesc, bench_threads()), bench_threads());
  const AttentionParams params{.scale = 0.125f, .window = 0, .sinks = sinks.data()};
  for (auto _ : state) row->run(test.cx, att.tensor(), q.tensor(), kv, params, step);
  report(state, bytes(kDesc, tokens, context, 2), flops(kDesc, tokens, context));
}

const bool kRegistered = [] {
  for (const AttentionKernel* row : kernels_here(attention_kernels(), kDesc))
    benchmark::RegisterBenchmark((std::string("attention/") + row->name).c_str(), run, row)
        ->Args({1, 4095})
        ->Args({1, 32767})
        ->Args({1, 131071})
        ->Args({512, 0})
        ->Args({512, 7680})
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace nibble::ops
