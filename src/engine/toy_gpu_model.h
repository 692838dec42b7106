// ToyGpuModel: a language model on a GPU for the engine's tests, in integers: a full layer whose
// pages say which token is where, and recurrent layers whose state follows from every token so far
// and from those pages. toy_answer() is what it says, found on the host without an engine.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "models/model.h"
#include "ops/sample/sample.h"

#ifdef __CUDACC__
#define NIBBLE_ON_BOTH __host__ __device__
#else
#define NIBBLE_ON_BOTH
#endif

namespace nibble {

struct ToyNumbers {
  static constexpr int32_t kVocab = 256;
  static constexpr int64_t kPrime = 1000003;

  NIBBLE_ON_BOTH static constexpr int64_t key(int32_t token, int32_t position) {
    return (token * 7 + position * 13 + 1) & 0x3fff;
  }
  // `keys`: sum over the positions so far of key * (position + 1).
  NIBBLE_ON_BOTH static constexpr int64_t next(int64_t all, int32_t token, int32_t before,
                                               int64_t keys) {
    return (all * 61 + token + 3 * before + keys % kPrime + 1) % kPrime;
  }
  NIBBLE_ON_BOTH static constexpr float logit(int64_t all, int32_t v) {
    return static_cast<float>((all * 31 + v * int64_t{7919}) % 10007) * 0.001f;
  }
};

inline std::vector<int32_t> toy_answer(std::vector<int32_t> tokens, int32_t num_new) {
  std::vector<int32_t> answer;
  int64_t all = 1, keys = 0;
  int32_t before = 0;
  for (int32_t p = 0; std::ssize(answer) < num_new; ++p) {
    keys += ToyNumbers::key(tokens[p], p) * (p + 1);
    all = ToyNumbers::next(all, tokens[p], before, keys);
    before = tokens[p];
    if (p + 1 < std::ssize(tokens)) continue;
    int32_t best = 0;
    for (int32_t v = 1; v < ToyNumbers::kVocab; ++v) {
      if (ToyNumbers::logit(all, v) > ToyNumbers::logit(all, best)) best = v;
    }
    answer.push_back(best);
    tokens.push_back(best);
  }
  return answer;
}

class ToyGpuModel : public Model {
 public:
  static constexpr int32_t kNumStates = 3;  // layers 1, 2, 3

  ToyGpuModel() {
    info_.architecture = "ToyGpuModel";
    info_.num_layers = 1 + kNumStates;
    info_.vocab_size = ToyNumbers::kVocab;
    info_.max_positions = 8192;
    info_.groups = {{.layers = {0}, .num_kv_heads = 1, .head_dim = 8},
                    {.layers = {1, 2, 3}, .recurrent = {1, 1, 2, 1, 2}}};
  }

  const ModelInfo& info() const override { return info_; }
  int64_t scratch_bytes(const ops::Ctx&, const StepLimits& limits) const override {
    return int64_t{4} * limits.max_tokens + int64_t{4} * limits.max_out * ToyNumbers::kVocab;
  }
  void reserve(const ops::Ctx& cx, const StepLimits& limits) override {
    found_ = cx.allocate(int64_t{4} * limits.max_tokens);
    logits_ = cx.allocate(int64_t{4} * limits.max_out * ToyNumbers::kVocab);
    scratch_ = cx.allocate(ops::gpu::sample_scratch_bytes(limits.max_out));
    counters_ = cx.allocate(int64_t{4} * ops::Ctx::kNumCounters);
  }
  Tensor forward(ops::Ctx& cx, const Step& step, const SeqState& kv) override;

 private:
  ModelInfo info_;
  Buffer found_, logits_;      // i32 [T], f32 [R, V]
  Buffer scratch_, counters_;  // of sampling
};

}  // namespace nibble
