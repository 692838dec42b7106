#include "models/rope_config.h"

#include <algorithm>

namespace nibble {
namespace {

ops::YarnParams parse_yarn(const Config& rope, int64_t max_positions) {
  for (const char* key : {"mscale", "mscale_all_dim"})
    if (rope.has(key)) rope.fail(key, "is not supported for this model");
  ops::YarnParams yarn{.factor = rope.number("factor", 1, 1e6),
                       .beta_fast = rope.number_or("beta_fast", 32, 1e-3, 1e6),
                       .beta_slow = rope.number_or("beta_slow", 1, 1e-3, 1e6),
                       .original_max_position = static_cast<double>(rope.integer_or(
                           "original_max_position_embeddings", max_positions, 1, 1 << 30)),
                       .truncate = rope.boolean_or("truncate", true)};
  if (rope.has("attention_factor")) yarn.attention_factor = rope.number("attention_factor", 0, 1e6);
  if (yarn.beta_fast < yarn.beta_slow) rope.fail("beta_fast", "is less than beta_slow");
  return yarn;
}

ops::Llama3Params parse_llama3(const Config& rope) {
  const ops::Llama3Params llama3{.factor = rope.number("factor", 1, 1e6),
                                 .low = rope.number("low_freq_factor", 1e-3, 1e6),
                                 .high = rope.number("high_freq_factor", 1e-3, 1e6),
                                 .original_max_position = static_cast<double>(
                                     rope.integer("original_max_position_embeddings", 1, 1 << 30))};
  if (llama3.high <= llama3.low) rope.fail("high_freq_factor", "is not more than low_freq_factor");
  return llama3;
}

}  // namespace

ops::Rope parse_rope(const Config& config, int64_t head_dim, int64_t max_positions,
                     std::initializer_list<const char*> types) {
  const Config rope = rope_parameters(config);
  const double theta = rope.number("rope_theta", 1.001, 1e12);
  const std::string type = rope.text("rope_type");
  if (std::ranges::find(types, type) == types.end()) {
    std::string known;
    for (const char* name : types) known += std::string(known.empty() ? "" : " or ") + name;
    rope.fail("rope_type", "is " + type + ", expected " + known);
  }
  const int dim = static_cast<int>(head_dim);
  if (type == "yarn") return ops::make_rope(dim, theta, parse_yarn(rope, max_positions));
  if (type == "llama3") return ops::make_llama3_rope(dim, theta, parse_llama3(rope));
  return ops::make_rope(dim, theta, std::nullopt);
}

}  // namespace nibble
