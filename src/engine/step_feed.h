// StepFeed: rank 0's side of steps that several ranks compute together. It tells the others what
// the scheduler planned; StepFollower is the other side.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "dist/comm.h"
#include "engine/gpu_steps.h"
#include "engine/kv_plan.h"
#include "engine/page_memory.h"
#include "engine/split_rows.h"
#include "engine/step_block.h"
#include "engine/step_message.h"
#include "ops/ctx.h"

namespace nibble {

// Of what every rank computes for itself and must have alike to the bit, or their choices of
// experts part and nobody notices: the residual, norms and routing of every layer.
class ReplicaHash {
 public:
  // Shows `cx` to the hash in place of its tap, until the end of this object.
  explicit ReplicaHash(ops::Ctx& cx);
  ~ReplicaHash();
  ReplicaHash(const ReplicaHash&) = delete;
  ReplicaHash& operator=(const ReplicaHash&) = delete;
  // Throws Error naming the ranks that differ from the first.
  void compare(dist::Comm& comm) const;

 private:
  void add(std::string_view name, const Tensor& value);
  ops::Ctx& cx_;
  uint64_t hash_ = 0xcbf29ce484222325;
};

// Launches the step of `block` on this rank's GPU; where it is to be compared, waits for it.
void launch_on_rank(GpuSteps& steps, ops::Ctx& cx, const StepBlock& block,
                    const StepMessage& message);

// Waits for all ranks, which load each at its own pace. They plan for themselves and must have
// planned the same; throws Error where they have not.
// Returns the columns of the logits that each has. masked_ids become rank 0's.
std::vector<Cut> agree(dist::Comm& comm, const ModelInfo& info, const KvPlan& plan,
                       const StepLimits& limits, std::vector<int32_t>& masked_ids);

class StepFeed {
 public:
  // Every so many steps are compared, the first one among them. On GPUs, where that takes as long
  // as several steps, fewer, and only small ones.
  static constexpr int64_t kCompareEvery = 64, kCompareEveryOnGpus = 1024;
  static constexpr int32_t kMostComparedOnGpus = 64;  // tokens

  StepFeed(dist::Comm& comm, const ModelInfo& info, const KvPlan& plan, const StepLimits& limits,
           std::vector<int32_t> masked_ids);
  // Of a row of logits that is gathered.
  static int64_t bytes(const ModelInfo& info) {
    return info.vocab_size * static_cast<int64_t>(sizeof(float));
  }
  // Tells the others that there is no more.
  ~StepFeed();
  StepFeed(const StepFeed&) = delete;
  StepFeed& operator=(const StepFeed&) = delete;

  // Pages in `memory` whose changes the others make, too. The feed must outlive them.
  std::unique_ptr<PageMemory> record(std::unique_ptr<PageMemory> memory);
  // The step on all ranks; then rows() are its logits.
  void run(Model& model, ops::Ctx& cx, const Step& step, const SeqState& kv);
  SplitRows& rows() { return rows_; }
  // Tells the others that the step which has run is to be computed once more with its spans cut to
  // these: Model::replay().
  void replay(std::span<const Span> spans);
  // run() on GPUs, where the step is begun; each of them finds the same ids.
  void launch(const Model& model, GpuSteps& steps, ops::Ctx& cx, const StepBlock& block,
              bool is_fed);

 private:
  class RecordedPages;
  bool is_compared(const ops::Ctx& cx, const Step& step);
  void tell(StepMessage message);
  void send(MessageHead::Kind kind, std::span<const std::byte> bytes);

  dist::Comm& comm_;
  SplitRows rows_;  // on CPUs
  std::vector<PageCopy> copies_;
  std::vector<TableChange> changes_;
  std::vector<std::byte> message_;
  int64_t uncompared_ = -1;  // steps since the last that was compared; none was
};

}  // namespace nibble
