#include "cli/rank_identity.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "cli/version.h"
#include "cpu/isa.h"
#include "io/checkpoint.h"

namespace nibble::cli {
namespace {

// Of each tensor, beside its name and shape: enough to tell a fine-tuned model from its parent.
constexpr int64_t kLookedAt = 256;

class Hash {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) value_ = (value_ ^ static_cast<uint8_t>(byte)) * 0x100000001b3;
    value_ = (value_ ^ bytes.size()) * 0x100000001b3;
  }
  std::string text() const {
    char hex[17];
    std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(value_));
    return hex;
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

// Names may differ from host to host; what is in the files may not.
std::string model_text(const EngineFlags& flags, const ModelFiles& files) {
  Hash hash;
  hash.add(files.config.dump());
  if (flags.load_format == "dummy")
    return "config " + hash.text() + ", dummy weights of seed " + std::to_string(flags.seed);
  const auto checkpoint = open_checkpoint(files.require_weights());
  const RangeReader read = checkpoint->make_reader();
  for (const TensorInfo& tensor : checkpoint->tensors()) {
    hash.add(tensor.name);
    for (const int64_t n : tensor.shape) hash.add(std::to_string(n));
    std::string bytes(static_cast<size_t>(std::min(kLookedAt, tensor.bytes)), '\0');
    read({&tensor, 0, std::ssize(bytes), reinterpret_cast<std::byte*>(bytes.data())});
    hash.add(bytes);
  }
  return "config and weights " + hash.text();
}

std::string flags_text(const EngineFlags& flags, const ops::Ctx& cx) {
  const auto yes = [](bool value) { return value ? "yes" : "no"; };
  std::string text = dense_text(dense_formats(flags.dense));
  const std::pair<const char*, std::string> all[] = {
      {"device", cx.on_gpu() ? cx.kernels.gpu.name : cpu::isa_name(cx.kernels.isa)},
      {"activations", ops::act_format_name(cx.kernels.activations)},
      {"kv", flags.kv_cache_dtype},
      {"max-model-len", std::to_string(flags.max_model_len)},
      {"max-num-seqs", std::to_string(flags.max_num_seqs)},
      {"max-num-batched-tokens", std::to_string(flags.max_num_batched_tokens)},
      {"chunks", yes(flags.chunked_prefill)},
      {"prefixes", yes(flags.prefix_caching)},
      {"speculation", flags.speculative_config},
      {"exact", yes(flags.exact)}};
  for (const auto& [name, value] : all) text += std::string(", ") + name + " " + value;
  for (const std::string& kernel : flags.kernels) text += ", " + kernel;
  return text;
}

}  // namespace

dist::Identity identity_of(const EngineFlags& flags, const LoadedEngine& loaded) {
  return {.build = "nibble " + version_text() + " " + commit_text(),
          .model = model_text(flags, loaded.files),
          .flags = flags_text(flags, loaded.cx)};
}

}  // namespace nibble::cli
