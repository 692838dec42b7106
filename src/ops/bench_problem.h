// For benches of ops: what a kernel reached, as counters.
#pragma once

#include <benchmark/benchmark.h>

#include "cpu/read_bandwidth.h"
#include "cpu/topology.h"
#include "ops/test_problem.h"

namespace nibble::ops {

inline int bench_threads() { return cpu::read_cores().usable(); }

// Bytes a second that all threads read together, measured once.
inline double bench_bandwidth() {
  static const double kBytesPerSecond = [] {
    cpu::ThreadPool pool(bench_threads());
    return cpu::measure_read_bandwidth(pool, int64_t{1} << 29, 5).median;
  }();
  return kBytesPerSecond;
}

// Reports GB/s, GFLOP/s and, in percent, the time that reading `bytes` takes at the measured read
// bandwidth over the time taken.
inline void report(benchmark::State& state, int64_t bytes, int64_t flops) {
  using benchmark::Counter;
  const auto rate = Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] = Counter(static_cast<double>(bytes) * 1e-9, rate);
  state.counters["GFLOP/s"] = Counter(static_cast<double>(flops) * 1e-9, rate);
  state.counters["%floor"] = Counter(100.0 * static_cast<double>(bytes) / bench_bandwidth(), rate);
}

}  // namespace nibble::ops
