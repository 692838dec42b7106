// Which options an engine takes.
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/kv_plan.h"

namespace nibble {

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
  CHECK(options.page_size > 0);
}

}  // namespace nibble
