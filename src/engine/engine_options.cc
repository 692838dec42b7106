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

namespace nibble {
namespace {

constexpr int64_t kScoreBytes = int64_t{64} << 20;  // of logits of prompts that are scored
constexpr int32_t kMinScoreRows = 16;

}  // namespace

KvOptions kv_options(const EngineOptions& options) {
  return {.page_size = options.page_size,
          .dtype = options.kv_dtype,
          .bytes = options.kv_bytes,
          .max_num_seqs = options.max_num_seqs,
          .max_step_tokens = options.max_num_batched_tokens,
          .max_len = options.max_model_len,
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
  CHECK(options.page_size > 0);
}

StepLimits Engine::step_limits(const ModelInfo& info, const EngineOptions& options) {
  const int64_t rows = std::max<int64_t>(kMinScoreRows, kScoreBytes / (4 * info.vocab_size));
  return {.max_tokens = options.max_num_batched_tokens,
          .max_out = options.max_num_seqs +
                     static_cast<int32_t>(std::min<int64_t>(rows, options.max_num_batched_tokens))};
}

int64_t Engine::kv_bytes_for(const ModelInfo& info, const EngineOptions& options, int32_t len,
                             int32_t num_seqs) {
  return nibble::kv_bytes_for(info, kv_options(options), len, num_seqs);
}

int64_t Engine::table_bytes(const ModelInfo& info, const EngineOptions& options, int32_t len) {
  return KvCache::table_bytes(info, kv_options(options), len) +
         StepBlock::bytes(step_limits(info, options), options.max_num_seqs) +
         Sampler::bytes(info.vocab_size);
}

int64_t Engine::gpu_bytes(const ModelInfo& info, const EngineOptions& options, int32_t len) {
  return GpuPages::table_bytes(KvCache::table_entries(info, kv_options(options), len)) +
         GpuSteps::device_bytes(info, step_limits(info, options), options.max_num_seqs);
}

int64_t Engine::kv_tokens_for(const ModelInfo& info, const EngineOptions& options) {
  return plan_kv(info, kv_options(options)).tokens;
}

}  // namespace nibble
