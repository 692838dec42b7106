// Engine: continuous batching over one model. Each step takes one token of every decoding sequence,
// and drafts of those that follow it, and fills the rest of the token budget with prompt chunks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/kv_plan.h"
#include "engine/metrics.h"
#include "engine/rank_counts.h"
#include "engine/request.h"
#include "engine/speculation_counts.h"
#include "engine/speculation_options.h"
#include "models/model.h"

namespace nibble {

struct EngineOptions {
  int32_t max_num_seqs = 16;             // sequences in one step
  int32_t max_num_batched_tokens = 512;  // tokens in one step
  int32_t max_model_len = 0;             // prompt and output; 0: what model and KV memory allow
  int32_t page_size = 16;
  DType kv_dtype = DType::kBF16;        // kBF16, kF32 or kF8E4M3
  int64_t kv_bytes = 0;                 // memory for pages, all groups; never exceeded
  bool chunked_prefill = true;          // else prompts are read whole, in one step each
  bool graphs = true;                   // of decode steps on GPUs; else each op is launched
  bool prefix_caching = true;           // prompts that start alike share what was computed
  SpeculationOptions speculation = {};  // tokens drafted ahead, several verified in a step
  bool log_activity = false;            // a line every ten seconds while there is work
  // Of several ranks, which must plan alike: groups of as many heads as any of them has; empty: the
  // model's.
  std::vector<LayerGroup> planned_groups = {};
  std::vector<int32_t> masked_ids = {};  // never sampled: undecodable rows of the vocabulary
};

struct EngineStats {
  int32_t num_running = 0;
  int32_t num_waiting = 0;
  double kv_usage = 0;  // of the pages, 0..1
  // States of recurrent layers: of running sequences and their steps, and those that later prompts
  // may go on from, which give way to the former.
  int32_t states_running = 0;
  int32_t states_kept = 0;
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  int64_t num_preemptions = 0;
  int64_t prefix_cache_queries = 0;  // tokens of prompts that were started
  int64_t prefix_cache_hits = 0;     // those of them that were not computed again
  int64_t num_steps = 0;
  SpeculationCounts speculation;
  RankCounts ranks;  // of several on CPUs
  EngineMetrics metrics;
  bool failed = false;  // the model threw: every request ended with kError, no more are taken
};

class Engine {
 public:
  // Allocates everything: activations, pages, tables. Throws Error(kMemory) where kv_bytes cannot
  // hold one sequence of max_model_len. The model must outlive the engine. Where cx.comm leads to
  // other ranks, a StepFollower runs on each of them.
  Engine(Model& model, ops::Ctx cx, const EngineOptions& options);
  ~Engine();  // cancels what still runs

  // Starts the thread that steps while there is work. Without it, call step().
  void start();
  // One step on the caller's thread; false: nothing to do.
  bool step();
  // Between steps: shows the buffer named `only` (empty: every named one) of those that follow to
  // `tap` (none: to nobody). Slow.
  void set_tap(ops::Tap tap, std::string only = {});
  // Between steps: tells `on_op` "step" before each of those that follow, before each op its site's
  // label, and "end" (none: nobody). On a GPU it is told when a kind of step is recorded, and may
  // record events.
  void set_on_op(std::function<void(const char* name)> on_op);
  // Between steps: that op or site ("moe_up", "moe_up.3", "sample"; "": none) is left out of the
  // steps that follow, whose results mean nothing then; for what it costs among the others.
  void set_left_out(std::string op);

  // Thread-safe. A refusal (prompt empty or too long, ids out of range, bad parameters) is a text
  // fit for the user.
  Result<RequestId> submit(Request request);
  // Thread-safe. Several answers to one prompt, which is computed once: prompt, priority and salt
  // of all must be the same, and only the first may ask for prompt_logprobs. Each ends by itself.
  Result<std::vector<RequestId>> submit_forks(std::vector<Request> requests);
  // Thread-safe. Its pages are free before the next step is planned; the request ends with
  // kCanceled unless it has ended already.
  void cancel(RequestId id);

  // Thread-safe. What the model needs beside this process is gone, such as another rank: every
  // request ends with an error that says so, and no more are taken.
  void fail(const std::string& why);

  EngineStats stats() const;                  // thread-safe
  int32_t max_model_len() const;              // as granted
  const KvPlan& kv_plan() const;              // what pages and states there are
  int64_t kv_tokens() const;                  // positions that the pages hold
  int64_t draft_bytes(int32_t tokens) const;  // that drafts for a sequence of so many keep
  const Model& model() const;

  // Throws Error(kUsage) for options that make no sense, or not for this model; the constructor and
  // whoever plans before anything is loaded ask it.
  static void check(const ModelInfo& info, const EngineOptions& options);
  // For the memory plan, before anything is loaded: the largest step that the engine will ask the
  // model for; the bytes of pages and states so that `num_seqs` sequences of `len` tokens fit at
  // once; what options.kv_bytes will hold (throws as the constructor does).
  static StepLimits step_limits(const ModelInfo& info, const EngineOptions& options);
  static int64_t kv_bytes_for(const ModelInfo& info, const EngineOptions& options, int32_t len,
                              int32_t num_seqs);
  static KvPlan kv_plan_for(const ModelInfo& info, const EngineOptions& options);
  // What the engine allocates beside the pages: page tables for sequences of up to `len` tokens,
  // the arrays of a step, the sampler's rows, the past answers that drafts are made from.
  static int64_t table_bytes(const ModelInfo& info, const EngineOptions& options, int32_t len);
  // The same of the GPU's memory, where the model runs on one.
  static int64_t gpu_bytes(const ModelInfo& info, const EngineOptions& options, int32_t len);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
