#include "cpu/read_bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tensor/buffer.h"

namespace nibble::cpu {
namespace {

constexpr int64_t kBlock = 256;           // bytes a loop turn reads: four cache lines
constexpr int64_t kPrefetchBytes = 4096;  // as far ahead as a page; the hardware stops there
constexpr int64_t kGrain = 4096;          // parts begin at pages

// Four sums, so that no load waits for an addition. The compiler makes vectors of them.
uint64_t sum(const uint64_t* words, int64_t bytes) {
  constexpr int kWords = kBlock / sizeof(uint64_t);
  uint64_t sums[kWords] = {};
  for (const uint64_t* end = words + bytes / 8; words < end; words += kWords) {
    const char* ahead = reinterpret_cast<const char*>(words) + kPrefetchBytes;
    for (int64_t line = 0; line < kBlock; line += 64) __builtin_prefetch(ahead + line);
    for (int i = 0; i < kWords; ++i) sums[i] += words[i];
  }
  uint64_t total = 0;
  for (uint64_t s : sums) total += s;
  return total;
}

}  // namespace

ReadBandwidth measure_read_bandwidth(ThreadPool& pool, int64_t bytes, int repeats) {
  CHECK(bytes >= kGrain && repeats >= 1);
  bytes -= bytes % kGrain;
  const Buffer buffer(bytes);
  auto* data = static_cast<char*>(buffer.data());
  pool.parallel_for(bytes, kGrain, [&](int64_t begin, int64_t end, int) {
    std::memset(data + begin, 1, static_cast<size_t>(end - begin));
  });
  std::vector<double> rates;
  std::vector<uint64_t> totals(static_cast<size_t>(pool.size()));
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(bytes, kGrain, [&](int64_t begin, int64_t end, int worker) {
      totals[static_cast<size_t>(worker)] =
          sum(reinterpret_cast<const uint64_t*>(data + begin), end - begin);
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    rates.push_back(static_cast<double>(bytes) / took.count());
    // Every byte is 1, so the sums say whether all was read.
    uint64_t total = 0;
    for (uint64_t& t : totals) total += std::exchange(t, 0);
    CHECK(total == static_cast<uint64_t>(bytes / 8) * 0x0101010101010101u);
  }
  std::sort(rates.begin(), rates.end());
  return {.median = rates[rates.size() / 2], .best = rates.back()};
}

}  // namespace nibble::cpu
