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

// Of the full groups.
int64_t full_bytes(const ModelInfo& info, const KvOptions& options, int32_t len, int32_t num_seqs) {
  int64_t bytes = 0;
  for (const LayerGroup& group : info.groups) {
    if (group.window != kNoWindow) continue;
    bytes += peak_pages(group, options, len, num_seqs) * page_bytes(group, options);
  }
  return bytes;
}

// Of what grows with the number of sequences alone: windows and states.
int64_t running_bytes(const ModelInfo& info, const KvOptions& options, int32_t len,
                      int32_t num_seqs) {
  int64_t bytes = state_slots(info, options, num_seqs) * slot_bytes(info, options);
  for (const LayerGroup& group : info.groups) {
    if (group.window == kNoWindow) continue;
    bytes += peak_pages(group, options, len, num_seqs) * page_bytes(group, options);
  }
  return bytes;
}

// Longest sequence whose full pages fit beside what `num_seqs` sequences run with; 0 where none.
int32_t longest(const ModelInfo& info, const KvOptions& options, int32_t num_seqs) {
  const auto fits = [&](int64_t len) {
    const auto n = static_cast<int32_t>(std::min<int64_t>(len, info.max_positions));
    return full_bytes(info, options, n, 1) + running_bytes(info, options, n, num_seqs) <=
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

// Sequences that windows and states are sized for, beside one full sequence of `len`; 0 where none
// fits.
int32_t running_seqs(const ModelInfo& info, const KvOptions& options, int32_t len) {
  const int64_t full = full_bytes(info, options, len, 1);
  int32_t n = options.max_num_seqs;
  while (n > 0 && full + running_bytes(info, options, len, n) > options.bytes) --n;
  return n;
}

[[noreturn]] void throw_no_room(const ModelInfo& info, const KvOptions& options, int32_t len) {
  const int64_t states = state_slots(info, options, 1) * slot_bytes(info, options);
  std::string what = std::to_string(kv_bytes_for(info, options, len, 1)) + " bytes of KV cache";
  if (states > 0) {
    what += " (" + std::to_string(states) + " of them for the states of recurrent layers)";
  }
  throw Error(ErrorKind::kMemory,
              "one sequence of " + std::to_string(len) + " tokens needs " + what +
                  ", and there are " + std::to_string(options.bytes) +
                  (states > options.bytes
                       ? "; raise --memory-budget: no other setting makes the states smaller"
                       : "; lower --max-model-len or --max-num-batched-tokens, or raise "
                         "--memory-budget"));
}

}  // namespace

int64_t page_bytes(const LayerGroup& group, const KvOptions& options) {
  return int64_t{2} * static_cast<int64_t>(group.layers.size()) * options.page_size *
         group.num_kv_heads * group.head_dim * dtype_bytes(options.dtype);
}

int64_t slot_bytes(const ModelInfo& info, const KvOptions& options) {
  int64_t state = 0, page_part = 0;
  for (const LayerGroup& group : info.groups) {
    if (group.is_recurrent()) {
      state += static_cast<int64_t>(group.layers.size()) * group.recurrent.bytes();
    } else {
      page_part += page_bytes(group, options);
    }
  }
  return state > 0 && options.prefix_cache ? state + page_part : state;
}

int32_t state_slots(const ModelInfo& info, const KvOptions& options, int32_t num_seqs) {
  return slot_bytes(info, options) > 0 ? 2 * num_seqs : 0;
}

int64_t kept_states(const ModelInfo& info, const KvOptions& options, int64_t tokens) {
  if (!options.prefix_cache || slot_bytes(info, options) == 0) return 0;
  const int64_t texts = tokens / (int64_t{kPartingPages} * options.page_size);
  return std::max(tokens / (int64_t{kStatePages} * options.page_size),
                  std::min<int64_t>(texts, options.max_num_seqs));
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
  const int64_t others = int64_t{len} * (num_seqs - 1);
  int64_t bytes = full_bytes(info, options, len, num_seqs) +
                  running_bytes(info, options, len, num_seqs) +
                  kept_states(info, options, others) * slot_bytes(info, options);
  for (const LayerGroup& group : info.groups) {
    bytes += kept_pages(group, options, others) * page_bytes(group, options);
  }
  return bytes;
}

namespace {

// Pages of each full group that fit into `bytes`, together with the windows and states that are
// kept for them.
int64_t full_pages_in(const ModelInfo& info, const KvOptions& options, int32_t max_len,
                      int64_t bytes) {
  const int64_t kSpan = int64_t{kKeptWindowEvery} * kStatePages * options.page_size;
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
  kept_per_span +=
      slot_bytes(info, options) * kept_states(info, options, kSpan) * kKeptWindowEvery / kSpan;
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
  int32_t num_seqs = options.max_num_seqs;  // at once
  if (plan.max_len > 0) {
    num_seqs = running_seqs(info, options, plan.max_len);
    if (num_seqs == 0) throw_no_room(info, options, plan.max_len);
  } else {
    plan.max_len = longest(info, options, num_seqs);
    while (plan.max_len < std::min(kWorthwhileLength, info.max_positions) && num_seqs > 1) {
      num_seqs = (num_seqs + 1) / 2;
      plan.max_len = longest(info, options, num_seqs);
    }
    if (plan.max_len == 0) throw_no_room(info, options, options.page_size);
  }

  const int64_t rest = options.bytes - running_bytes(info, options, plan.max_len, num_seqs);
  const int64_t full_pages = full_pages_in(info, options, plan.max_len, rest);
  plan.tokens = full_pages * options.page_size;
  int64_t left = rest;
  for (const LayerGroup& group : info.groups) {
    if (group.window == kNoWindow) left -= full_pages * page_bytes(group, options);
  }
  if (const int64_t state = slot_bytes(info, options); state > 0) {
    const int64_t kept = std::min(kept_states(info, options, plan.tokens), left / state);
    left -= kept * state;
    plan.options.max_num_seqs = num_seqs;
    plan.state_slots = static_cast<int32_t>(state_slots(info, options, num_seqs) + kept);
    plan.bytes += plan.state_slots * state;
  }
  for (const LayerGroup& group : info.groups) {
    const int64_t bytes = page_bytes(group, options);
    int64_t pages = group.is_recurrent() ? 0 : full_pages;
    if (group.window != kNoWindow) {
      const int64_t kept = kept_pages(group, options, plan.tokens);
      pages = peak_pages(group, options, plan.max_len, num_seqs);
      if (kept * bytes <= left) pages += kept, left -= kept * bytes;
    }
    plan.group_pages.push_back(static_cast<int32_t>(pages));
    plan.bytes += pages * bytes;
  }
  CHECK(plan.bytes <= options.bytes);
  return plan;
}

}  // namespace nibble
