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
    bytes += peak_pages(group, options, len, num_seqs) * page_bytes(group, options);
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

int64_t page_bytes(const LayerGroup& group, const KvOptions& options) {
  return int64_t{2} * static_cast<int64_t>(group.layers.size()) * options.page_size *
         group.num_kv_heads * group.head_dim * dtype_bytes(options.dtype);
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

int64_t kept_pages(const LayerGroup& group, const KvOptions& options, int64_t tokens) {
  if (!options.prefix_cache || group.window == kNoWindow) return 0;
  const int64_t window =
      touched_pages(group.window - 1 + int64_t{options.max_rollback}, options.page_size);
  return tokens / kKeptWindowEvery * window;
}

int64_t kv_bytes_for(const ModelInfo& info, const KvOptions& options, int32_t len,
                     int32_t num_seqs) {
  int64_t bytes = group_bytes(info, options, len, num_seqs, false) +
                  group_bytes(info, options, len, num_seqs, true);
  for (const LayerGroup& group : info.groups) {
    bytes += kept_pages(group, options, int64_t{len} * (num_seqs - 1)) * page_bytes(group, options);
  }
  return bytes;
}

namespace {

// Pages of each full group that fit into `bytes`, together with the windows that are kept for them.
int64_t full_pages_in(const ModelInfo& info, const KvOptions& options, int32_t max_len,
                      int64_t bytes) {
  const int64_t one_sequence = ceil_div(max_len, options.page_size);
  const int64_t most = options.max_num_seqs * one_sequence;
  int64_t page = 0;
  int64_t kept_per_span = 0;  // of kKeptWindowEvery positions
  for (const LayerGroup& group : info.groups) {
    const int64_t group_page = page_bytes(group, options);
    if (group.window == kNoWindow) page += group_page;
    kept_per_span += kept_pages(group, options, kKeptWindowEvery) * group_page;
  }
  if (page == 0) return most;
  // n pages and (n * page_size / span) * kept_per_span fit.
  const int64_t with_kept =
      bytes * kKeptWindowEvery / (page * kKeptWindowEvery + kept_per_span * options.page_size);
  return std::min(most, with_kept >= one_sequence ? with_kept : bytes / page);
}

}  // namespace

void check_length(const ModelInfo& info, int32_t len) {
  if (len <= info.max_positions) return;
  throw Error(ErrorKind::kUsage, "--max-model-len " + std::to_string(len) + " is more than the " +
                                     std::to_string(info.max_positions) +
                                     " positions that the model was made for");
}

KvPlan plan_kv(const ModelInfo& info, const KvOptions& options) {
  check_length(info, options.max_len);
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

  const int64_t rest =
      options.bytes - group_bytes(info, options, plan.max_len, num_window_seqs, true);
  const int64_t full_pages = full_pages_in(info, options, plan.max_len, rest);
  plan.tokens = full_pages * options.page_size;
  int64_t left = rest;
  for (const LayerGroup& group : info.groups) {
    if (group.window == kNoWindow) left -= full_pages * page_bytes(group, options);
  }
  for (const LayerGroup& group : info.groups) {
    const int64_t bytes = page_bytes(group, options);
    int64_t pages = full_pages;
    if (group.window != kNoWindow) {
      const int64_t kept = kept_pages(group, options, plan.tokens);
      pages = peak_pages(group, options, plan.max_len, num_window_seqs);
      if (kept * bytes <= left) pages += kept, left -= kept * bytes;
    }
    plan.group_pages.push_back(static_cast<int32_t>(pages));
    plan.bytes += pages * bytes;
  }
  CHECK(plan.bytes <= options.bytes);
  return plan;
}

}  // namespace nibble
