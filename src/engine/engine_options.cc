#include "engine/engine_options.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "engine/gpu_pages.h"
#include "engine/gpu_steps.h"
#include "engine/kv_cache.h"
#include "engine/sampler.h"
#include "engine/step_block.h"
#include "engine/step_feed.h"
#include "engine/suffix_drafter.h"

namespace nibble {
namespace {

constexpr int64_t kScoreBytes = int64_t{64} << 20;  // of logits of prompts that are scored
constexpr int32_t kMinScoreRows = 16;
constexpr int32_t kMaxDraftRows = 128;  // of logits behind drafts, of all sequences together
constexpr int32_t kMaxReplayed = 128;   // tokens of a step: recurrent layers' inputs are large

bool uses_head(const SpeculationOptions& options) {
  return options.method == SpeculationOptions::Method::kHead;
}

int64_t past_bytes(const SpeculationOptions& options) {
  return options.method == SpeculationOptions::Method::kSuffix ? SuffixDrafter::bytes(options) : 0;
}

void check_speculation(const EngineOptions& options) {
  const int32_t num_tokens = options.speculation.num_tokens;
  if (num_tokens < 0 || num_tokens > kMaxDrafts) {
    throw Error(ErrorKind::kUsage, "--speculative-config: num_speculative_tokens must be 1 to " +
                                       std::to_string(kMaxDrafts) + ", not " +
                                       std::to_string(num_tokens));
  }
  if (num_tokens >= options.max_num_batched_tokens) {
    throw Error(ErrorKind::kUsage, "--speculative-config: num_speculative_tokens (" +
                                       std::to_string(num_tokens) +
                                       ") must be below --max-num-batched-tokens (" +
                                       std::to_string(options.max_num_batched_tokens) +
                                       "): a step takes them behind a token of the sequence");
  }
}

}  // namespace

HeadDrafter::Limits head_limits(const ModelInfo& info, const EngineOptions& options) {
  int32_t window = kNoWindow;
  for (const LayerGroup& group : info.groups)
    if (group.window != kNoWindow && (window == kNoWindow || group.window < window))
      window = group.window;
  return {
      .max_tokens = options.max_num_batched_tokens,
      .max_num_seqs = options.max_num_seqs,
      .max_drafts = options.speculation.num_tokens,
      .row_bytes = options.speculation.head_row_bytes,
      .window = window,
      .draws = options.speculation.draws_drafts,
      .max_kept = options.speculation.drawn_rule ? max_drafts(options) + options.max_num_seqs : 0,
      .vocab_size = options.speculation.head_vocab_size};
}

ModelInfo kv_info(const ModelInfo& info, const EngineOptions& options) {
  ModelInfo all = info;
  if (!uses_head(options.speculation)) return all;
  all.groups.push_back(options.speculation.head_group);
  all.groups.back().layers = {all.num_layers++};
  return all;
}

// By which pages and states are planned.
static ModelInfo planned_info(const ModelInfo& info, const EngineOptions& options) {
  ModelInfo all = kv_info(info, options);
  std::ranges::copy(options.planned_groups, all.groups.begin());
  return all;
}

KvOptions kv_options(const EngineOptions& options) {
  return {.page_size = options.page_size,
          .dtype = options.kv_dtype,
          .bytes = options.kv_bytes,
          .max_num_seqs = options.max_num_seqs,
          .max_step_tokens = options.max_num_batched_tokens,
          .max_len = options.max_model_len,
          .max_rollback = uses_head(options.speculation) ? 1 : 0,
          .prefix_cache = options.prefix_caching};
}

void Engine::check(const ModelInfo& info, const EngineOptions& options) {
  constexpr int32_t kMaxSeqs = 1 << 16;  // what the counts of pages have room for
  if (options.max_num_seqs < 1 || options.max_num_seqs > kMaxSeqs) {
    throw Error(ErrorKind::kUsage, "--max-num-seqs must be 1 to " + std::to_string(kMaxSeqs));
  }
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    throw Error(ErrorKind::kUsage,
                "--max-num-batched-tokens (" + std::to_string(options.max_num_batched_tokens) +
                    ") must be at least --max-num-seqs (" + std::to_string(options.max_num_seqs) +
                    "): each step takes a token of every sequence");
  }
  if (options.max_model_len < 0) {
    throw Error(ErrorKind::kUsage, "--max-model-len must not be negative");
  }
  check_length(info, options.max_model_len);
  if (!options.chunked_prefill &&
      (options.max_model_len == 0 || options.max_num_batched_tokens < options.max_model_len)) {
    throw Error(ErrorKind::kUsage,
                "--no-enable-chunked-prefill reads every prompt in one step: it needs "
                "--max-model-len, and --max-num-batched-tokens of at least as many");
  }
  if (options.kv_dtype == DType::kF8E4M3 && !info.refuses_fp8_kv.empty())
    throw Error(ErrorKind::kUnsupported,
                "--kv-cache-dtype fp8: " + info.refuses_fp8_kv + "; leave it out for bf16");
  check_speculation(options);
  CHECK(options.page_size > 0);
}

int32_t max_drafts(const EngineOptions& options) {
  const int32_t most = std::max(options.speculation.num_tokens, kMaxDraftRows);
  return static_cast<int32_t>(
      std::min<int64_t>(most, int64_t{options.speculation.num_tokens} * options.max_num_seqs));
}

StepLimits Engine::step_limits(const ModelInfo& info, const EngineOptions& options) {
  const int64_t rows = std::max<int64_t>(kMinScoreRows, kScoreBytes / (4 * info.vocab_size));
  const int32_t most = std::min(options.max_num_seqs + max_drafts(options),
                                std::min(options.max_num_batched_tokens, kMaxReplayed));
  return {.max_tokens = options.max_num_batched_tokens,
          .max_out = options.max_num_seqs + max_drafts(options) +
                     static_cast<int32_t>(std::min<int64_t>(rows, options.max_num_batched_tokens)),
          .max_replayed = info.replays && max_drafts(options) > 0 ? most : 0};
}

int64_t Engine::kv_bytes_for(const ModelInfo& info, const EngineOptions& options, int32_t len,
                             int32_t num_seqs) {
  return nibble::kv_bytes_for(planned_info(info, options), kv_options(options), len, num_seqs);
}

int64_t Engine::table_bytes(const ModelInfo& info, const EngineOptions& options, int32_t len) {
  const HeadDrafter::Limits limits = head_limits(info, options);
  const int64_t head_bytes = uses_head(options.speculation)
                                 ? HeadDrafter::bytes(limits) + HeadDrafter::kept_bytes(limits)
                                 : 0;
  return head_bytes + KvCache::table_bytes(kv_info(info, options), kv_options(options), len) +
         StepBlock::bytes(step_limits(info, options), options.max_num_seqs) +
         Sampler::bytes(info.vocab_size) + past_bytes(options.speculation) +
         (info.logits.is_whole() ? 0 : StepFeed::bytes(info));
}

int64_t Engine::gpu_bytes(const ModelInfo& info, const EngineOptions& options, int32_t len) {
  const int64_t head_bytes =
      uses_head(options.speculation) ? HeadDrafter::bytes(head_limits(info, options)) : 0;
  return head_bytes +
         GpuPages::table_bytes(
             KvCache::table_entries(kv_info(info, options), kv_options(options), len)) +
         GpuSteps::device_bytes(info, step_limits(info, options), options.max_num_seqs);
}

KvPlan Engine::kv_plan_for(const ModelInfo& info, const EngineOptions& options) {
  return plan_kv(planned_info(info, options), kv_options(options));
}

}  // namespace nibble
