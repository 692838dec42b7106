// StepFollower: a rank that does as rank 0 says (StepFeed): it has no scheduler and samples
// nothing, but makes the same changes to pages of its own, and computes its part of each step.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "dist/comm.h"
#include "engine/engine.h"
#include "engine/gpu_pages.h"
#include "engine/gpu_steps.h"
#include "engine/kv_cache.h"
#include "engine/model_lease.h"
#include "engine/split_rows.h"
#include "engine/step_block.h"
#include "engine/step_message.h"
#include "models/model.h"
#include "ops/ctx.h"

namespace nibble {

class StepFollower {
 public:
  // As an Engine of the same options on rank 0; cx.comm leads there.
  StepFollower(Model& model, ops::Ctx cx, const EngineOptions& options);
  ~StepFollower();

  // Until rank 0 says that there is no more. Throws Error where it is lost, or a step fails.
  void run();

 private:
  class ReplayedPages;
  std::unique_ptr<PageMemory> page_memory();
  bool step();
  int64_t most_bytes(MessageHead::Kind kind) const;
  MessageHead receive();
  void replay();
  void run_on_cpu(const StepMessage& message);
  void launch(const StepMessage& message);

  Model& model_;
  std::optional<ModelLease> lease_;
  ops::Ctx cx_;
  ModelInfo kv_info_;  // the model's, and the pages of a head, which rank 0 alone has
  KvPlan plan_;
  GpuPages* gpu_pages_ = nullptr;  // on a GPU: where pages_ are
  ReplayedPages* pages_;           // kv_'s memory
  KvCache kv_;                     // for its pages and tables alone
  StepBounds bounds_;
  std::unique_ptr<GpuSteps> gpu_;  // none on CPUs
  std::vector<StepBlock> blocks_;  // there two, which take turns
  size_t turn_ = 0;
  std::unique_ptr<AnsweredRows> rows_;  // on CPUs
  Step step_;                           // the last; views into told_
  std::vector<std::byte> message_, told_;
};

}  // namespace nibble
