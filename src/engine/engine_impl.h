// The inside of Engine: engine.cc plans and launches steps and talks to other threads,
// engine_results.cc makes of a step's logits what is reported.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/activity_log.h"
#include "engine/engine.h"
#include "engine/gpu_pages.h"
#include "engine/gpu_steps.h"
#include "engine/head_drafter.h"
#include "engine/kv_cache.h"
#include "engine/kv_plan.h"
#include "engine/model_lease.h"
#include "engine/request_check.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/speculation.h"
#include "engine/split_sampler.h"
#include "engine/step_block.h"
#include "engine/step_feed.h"

namespace nibble {

class Engine::Impl {
 public:
  Impl(Model& model, ops::Ctx cx, const EngineOptions& options);
  ~Impl();

  void start();
  bool step();
  void set_on_op(std::function<void(const char*)> on_op) {
    cx_.on_op = std::move(on_op);
    if (gpu_ != nullptr) gpu_->forget_graphs();
  }
  void set_left_out(std::string op) {
    cx_.left_out = std::move(op);
    if (gpu_ != nullptr) gpu_->forget_graphs();
  }
  void set_tap(ops::Tap tap, std::string only) {
    cx_.tap = std::move(tap);
    cx_.tap_only = std::move(only);
  }
  Result<std::vector<RequestId>> submit(std::vector<Request> requests);
  void cancel(RequestId id);
  void fail(const std::string& why);
  void mask_came();
  EngineStats stats() const;
  const KvPlan& kv_plan() const { return kv_.plan(); }
  int64_t draft_bytes(int32_t tokens) const { return speculation_.bytes_for(tokens); }
  const Model& model() const { return model_; }

 private:
  // One token of a step that was begun ahead.
  struct AheadRow {
    RequestId id;
    int32_t slot, begin;
  };
  // What other threads ask for, until the engine's thread takes it over.
  struct Inbox {
    std::vector<std::unique_ptr<Sequence>> submitted;
    std::vector<RequestId> canceled;
    bool mask_came = false;
    std::string failure;  // of what the model needs beside this process
    bool stop = false;
    bool empty() const {
      return submitted.empty() && canceled.empty() && !mask_came && failure.empty() && !stop;
    }
  };

  void run();
  void take_inbox();
  bool wait_for_inbox(std::unique_lock<std::mutex>& lock);
  void hold_unmasked();
  bool plan() noexcept;
  void launch();
  void finish();
  void replay();
  void remove_ended();
  void feed_head();
  void feed_ahead();
  bool take_fed();
  bool choose_fed();
  bool has_ended(const Sequence& sequence) const;
  void see_drafts();
  void fail_all(const std::string& why) noexcept;

  std::unique_ptr<PageMemory> page_memory();
  Buffer step_memory(const EngineOptions& options) const;
  void fetch_rows();
  std::span<float> logits_row(int64_t row);
  Sampler::Sampled found(int64_t row);
  Sampler::Sampled sampled(const Sequence& sequence, int64_t row);
  Sampler::Masks masks_of(const Sequence& sequence);
  void launch_on_gpu();
  void begin_on_gpu(const StepBlock& block, bool is_fed);
  bool is_ahead(const std::vector<Chunk>& chunks) const;
  bool plan_ahead(const std::vector<Chunk>& chunks);
  void find_plain(const std::vector<Chunk>& chunks);
  bool advance(size_t chunk, int64_t row);
  bool score(Sequence& sequence, int64_t row);
  bool verify(size_t chunk, int64_t row);
  bool wait_for_mask(const Sequence& sequence);
  bool are_apart(const Sequence& sequence) const;
  bool are_together(const Sequence& sequence) const;
  std::optional<Verified> verify_apart(Sequence& sequence, int64_t row,
                                       std::span<const int32_t> ids);
  bool sample(Sequence& sequence, int64_t row, int32_t draft, int32_t chosen);
  bool report_end(const Sequence& sequence, FinishReason reason, const std::string& error,
                  bool is_bad_request = false);
  void publish_stats();

  Model& model_;
  std::optional<ModelLease> lease_;  // once nothing of the start-up is left that may be refused
  ops::Ctx cx_;
  RequestLimits request_limits_;
  ModelInfo kv_info_;  // the model's, and the pages of a head
  KvPlan kv_plan_;
  std::unique_ptr<StepFeed> feed_;  // of the other ranks; none where there is one
  GpuPages* gpu_pages_ = nullptr;   // kv_'s memory, on a GPU
  KvCache kv_;
  StepLimits step_limits_;
  Scheduler scheduler_;
  StepBlock blocks_[2];                // of the step at hand, and of the one begun ahead of it
  int32_t turn_ = 0;                   // which is the step at hand's
  std::vector<AheadRow> ahead_;        // of the step begun ahead; empty: there is none
  std::vector<AheadRow> begun_;        // of the step at hand, where it was begun ahead
  std::vector<Span> replayed_;         // of the step at hand, less drafts that did not come true
  std::vector<Chunk> ahead_chunks_;    // the same, while it is written
  std::vector<bool> plain_;            // of each chunk of the step at hand; on a GPU
  std::unique_ptr<GpuSteps> gpu_;      // none on CPUs
  std::unique_ptr<HeadDrafter> head_;  // none where nobody drafts from hidden rows
  std::vector<HeadDrafter::Fed> fed_;  // of the step that ran last
  bool is_fed_ahead_ = false;          // the head, what the step at hand finds
  Sampler sampler_;
  std::unique_ptr<SplitSampler> split_sampler_;  // of several ranks on CPUs
  Speculation speculation_;
  std::optional<VerificationRule> drawn_rule_;
  std::vector<Distribution> p_, q_;  // of the drafts at hand
  SteadyTime step_began_;            // or the one before ended, whose end it waited for
  SteadyTime waits_until_;           // at most, in finish(), for masks behind drafts
  std::vector<int64_t> wanted_;      // rows of logits that the host must see
  Tensor logits_;                    // of the step that ran last, [R, V]; of one rank
  std::vector<uint32_t> bits_;       // [V / 32] of a grammar
  Output output_;
  PromptLogprobs prompt_logprobs_;
  std::vector<RequestId> ended_;  // in this step
  EngineStats counters_;          // the engine thread's own
  bool log_activity_;
  ActivityLog log_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  Inbox inbox_;
  RequestId next_id_ = 1;
  EngineStats stats_;

  std::thread thread_;
};

}  // namespace nibble
