#include "engine/kv_plan.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace nibble {
namespace {

constexpr int32_t kWorthwhileLength = 4096;  // below it, a longer context beats more windows

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Pages that `n` consecutive positions touch at most, wherever the first one lies.
int64_t touched_pages(int64_t n, int64_t page_size) { return n <= 1 ? n : (n - 2) / page_size + 2; }

int64_t group_bytes(const ModelInfo& info, const KvOptions& options, int32_t len, int32_t num_seqs,
                    bool windows) {
  int64_t bytes = 0;
  for (const LayerGroup& group : info.groups) {
    if ((group.window != kNoWindow) != windows) continue;
    bytes += peak_pages(group, options, len, num_seqs) * page_bytes(info, group, options);
  }
  return bytes;
}

// Longest sequence whose full pages fit beside windows for `num_seqs` sequences; 0 where none.
int32_t longest(const ModelInfo& info, const KvOptions& options, int32_t num_seqs) {
  const auto fits = [&](int64_t len) {
    const auto n = static_cast<int32_t>(std::min<int64_t>(len, info.max_positions));
    return group_bytes(info, options, n, 1, false) +
               group_bytes(info, options, n, num_seqs, true) <=
           options.bytes;
  };
  int64_t low = 0;  // in pages; fits
  int64_t high = ceil_div(info.max_positions, options.page_size) + 1;
  while (high - low > 1) {
    const int64_t mid = (low + high) / 2;
    (fits(mid * options.page_size) ? low : high) = mid;
  }
  return static_cast<int32_t>(std::min<int64_t>(low * options.page_size, info.max_positions));
}

// Sequences that window groups are sized for, beside one full sequence of `len`; 0 where none fits.
int32_t window_seqs(const ModelInfo& info, const KvOptions& options, int32_t len) {
  const int64_t full = group_bytes(info, options, len, 1, false);
  int32_t n = options.max_num_seqs;
  while (n > 0 && full + group_bytes(info, options, len, n, true) > options.bytes) --n;
  return n;
}

[[noreturn]] void throw_no_room(const ModelInfo& info, const KvOptions& options, int32_t len) {
  throw Error(ErrorKind::kMemory,
              "one sequence of " + std::to_string(len) + " tokens needs " +
                  std::to_string(kv_bytes_for(info, options, len, 1)) +
                  " bytes of KV cache, and there are " + std::to_string(options.bytes) +
                  "; lower --max-model-len or --max-num-batched-tokens, or raise --memory-budget");
}

}  // namespace

int64_t page_bytes(const ModelInfo& info, const LayerGroup& group, const KvOptions& options) {
  return int64_t{2} * static_cast<int64_t>(group.layers.size()) * options.page_size *
         info.num_kv_heads * info.head_dim * dtype_bytes(options.dtype);
}

int32_t peak_pages(const LayerGroup& group, const KvOptions& options, int32_t len,
                   int32_t num_seqs) {
  const int64_t page = options.page_size;
  const int64_t whole = ceil_div(len, page);
  if (group.window == kNoWindow) return static_cast<int32_t>(num_seqs * whole);
  const int64_t chunk = std::min(len, options.max_step_tokens);
  const int64_t kept = group.window - 1 + int64_t{options.max_rollback};
  const int64_t one = std::min(whole, touched_pages(kept + chunk, page));
  // With chunks c_i: touched(kept + c_i) <= ceil(kept / P) + 1 + ceil((c_i - 1) / P), and the last
  // terms sum up to at most max_step_tokens / P + num_seqs.
  const int64_t shared =
      num_seqs * (ceil_div(kept, page) + 2) + ceil_div(options.max_step_tokens, page);
  return static_cast<int32_t>(std::min(num_seqs * one, shared));
}

int64_t kv_bytes_for(const ModelInfo& info, const KvOptions& options, int32_t len,
                     int32_t num_seqs) {
  return group_bytes(info, options, len, num_seqs, false) +
         group_bytes(info, options, len, num_seqs, true);
}

KvPlan plan_kv(const ModelInfo& info, const KvOptions& options) {
  if (options.max_len > info.max_positions) {
    throw Error(ErrorKind::kUsage, "--max-model-len " + std::to_string(options.max_len) +
                                       " is more than the " + std::to_string(info.max_positions) +
                                       " positions that the model was made for");
  }
  KvPlan plan{.options = options, .max_len = options.max_len, .group_pages = {}};
  int32_t num_window_seqs = options.max_num_seqs;
  if (plan.max_len > 0) {
    num_window_seqs = window_seqs(info, options, plan.max_len);
    if (num_window_seqs == 0) throw_no_room(info, options, plan.max_len);
  } else {
    plan.max_len = longest(info, options, num_window_seqs);
    while (plan.max_len < std::min(kWorthwhileLength, info.max_positions) && num_window_seqs > 1) {
      num_window_seqs = (num_window_seqs + 1) / 2;
      plan.max_len = longest(info, options, num_window_seqs);
    }
    if (plan.max_len == 0) throw_no_room(info, options, options.page_size);
  }

  int64_t full_page_bytes = 0;
  for (const LayerGroup& group : info.groups) {
    if (group.window == kNoWindow) full_page_bytes += page_bytes(info, group, options);
  }
  const int64_t rest =
      options.bytes - group_bytes(info, options, plan.max_len, num_window_seqs, true);
  int64_t full_pages = options.max_num_seqs * ceil_div(plan.max_len, options.page_size);
  if (full_page_bytes > 0) full_pages = std::min(full_pages, rest / full_page_bytes);
  plan.tokens = full_pages * options.page_size;
  for (const LayerGroup& group : info.groups) {
    const int64_t pages = group.window == kNoWindow
                              ? full_pages
                              : peak_pages(group, options, plan.max_len, num_window_seqs);
    plan.group_pages.push_back(static_cast<int32_t>(pages));
    plan.bytes += pages * page_bytes(info, group, options);
  }
  CHECK(plan.bytes <= options.bytes);
  return plan;
}

}  // namespace nibble
