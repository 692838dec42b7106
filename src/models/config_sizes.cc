#include "models/config_sizes.h"

namespace nibble {

void check_heads(const Config& config, int64_t q_heads, int64_t kv_heads, int64_t head_dim) {
  if (q_heads % kv_heads != 0)
    config.fail("num_attention_heads", "is not a multiple of num_key_value_heads");
  if (head_dim % 2 != 0) config.fail("head_dim", "is odd; rotary embeddings need pairs");
}

void check_experts(const Config& config, const char* key, int64_t experts, int64_t of_expert) {
  constexpr int64_t kMostExperts = 1 << 17;
  constexpr double kMaxParameters = 1e15;
  if (static_cast<double>(of_expert) * static_cast<double>(experts) > kMaxParameters)
    config.fail(key, "makes more than 10^15 parameters with the other sizes");
  if (experts > kMostExperts)
    config.fail(key, "makes more than 131,072 experts with the number of layers");
}

}  // namespace nibble
