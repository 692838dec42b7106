// GpuSteps: runs the steps of a model on the GPU. What kernels read of a step goes there in one
// copy; a step that takes one token of each of up to 64 sequences is one launch of a graph,
// recorded when its like comes first. The likeliest id of every row of logits is found there too;
// whole rows come to the host only when asked for.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>

#include "cuda/graph.h"
#include "engine/gpu_pages.h"
#include "engine/step_block.h"
#include "models/model.h"
#include "ops/sample/sample.h"

namespace nibble {

class GpuSteps {
 public:
  static constexpr int32_t kMaxGraphTokens = 64;

  // `pages` are those of `kv`. All outlive it.
  GpuSteps(Model& model, ops::Ctx& cx, GpuPages& pages, SeqState kv, const StepLimits& limits,
           int32_t max_num_seqs, std::span<const int32_t> masked_ids);
  static int64_t device_bytes(const ModelInfo& info, const StepLimits& limits,
                              int32_t max_num_seqs);

  // Starts the step that `block` describes, which stays as it is until wait().
  void launch(const StepBlock& block);
  void wait();
  // Of a row of the step waited for: the likeliest id that is not masked; all logits [V], valid
  // until the next call.
  ops::Greedy greedy(int64_t row) const;
  std::span<float> logits(int64_t row);

  int num_graphs() const { return static_cast<int>(graphs_.size()); }

 private:
  using Key = std::tuple<int32_t, int32_t>;  // tokens, max_context
  Tensor run(const Step& step);

  Model& model_;
  ops::Ctx& cx_;
  GpuPages& pages_;
  SeqState kv_;
  Buffer block_, never_;                                  // on the device; never_: bit per id
  Buffer greedy_, row_;                                   // pinned: Greedy [R], float [V]
  Tensor logits_;                                         // of the last step, on the device
  std::map<Key, std::pair<cuda::Graph, Tensor>> graphs_;  // with the logits they leave
};

}  // namespace nibble
