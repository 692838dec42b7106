// GpuSteps: runs the steps of a model on the GPU. What kernels read of a step goes there in one
// copy; a step that takes one token of each of up to 64 sequences is one launch of a graph,
// recorded when its like comes first.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "cuda/graph.h"
#include "engine/gpu_pages.h"
#include "engine/step_block.h"
#include "models/model.h"

namespace nibble {

class GpuSteps {
 public:
  static constexpr int32_t kMaxGraphTokens = 64;

  // `pages` are those of `kv`. All outlive it.
  GpuSteps(Model& model, ops::Ctx& cx, GpuPages& pages, SeqState kv, const StepLimits& limits,
           int32_t max_num_seqs);
  static int64_t device_bytes(const StepLimits& limits, int32_t max_num_seqs);

  // Starts the step that `block` describes, which stays as it is until wait().
  void launch(const StepBlock& block);
  // The logits of the step, [R, V] on the host, once they are there; valid until the next launch().
  Tensor wait();

  int num_graphs() const { return static_cast<int>(graphs_.size()); }

 private:
  using Key = std::tuple<int32_t, int32_t>;  // tokens, max_context
  void forward(const Step& step);

  Model& model_;
  ops::Ctx& cx_;
  GpuPages& pages_;
  SeqState kv_;
  Buffer block_;   // on the device
  Buffer logits_;  // pinned
  Tensor device_logits_;
  std::map<Key, std::pair<cuda::Graph, Tensor>> graphs_;  // with the logits they leave
};

}  // namespace nibble
