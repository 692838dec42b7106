// GpuSteps: runs the steps of a model on the GPU. What kernels read of a step goes there in one
// copy; a step that takes up to 256 tokens, one of each sequence and drafts behind it, is one
// launch of a graph, and so is a replay of it. A graph is recorded when its like comes first, or,
// of more than 64 tokens, whose sizes are many, or with drafts, when it comes again; of the last
// kMostGraphs likes they are kept. The next id of every row of logits is found there too, the
// likeliest or one drawn; whole rows come to the host only when asked for, the next ones while it
// looks at one. Two steps may be in flight: the second takes as its tokens the ids that the first
// one finds.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cuda/graph.h"
#include "cuda/stream.h"
#include "engine/gpu_pages.h"
#include "engine/head_drafter.h"
#include "engine/recently_used.h"
#include "engine/step_block.h"
#include "models/model.h"
#include "ops/sample/sample.h"
#include "ops/sample/whole_logits.h"

namespace nibble {

class GpuSteps {
 public:
  static constexpr int32_t kMaxGraphTokens = 256, kMostGraphs = 1024;

  // `pages` are those of `kv`. All outlive it.
  GpuSteps(Model& model, ops::Ctx& cx, GpuPages& pages, SeqState kv, const StepLimits& limits,
           int32_t max_num_seqs, std::span<const int32_t> masked_ids, bool graphs);
  ~GpuSteps();  // waits for what runs
  // Of every step from now on; it outlives this.
  void keep_rows(RowHistory* history) { history_ = history; }
  static int64_t device_bytes(const ModelInfo& info, const StepLimits& limits,
                              int32_t max_num_seqs);

  // Whether the ids that a step finds may be the tokens of the next one: it takes one token of each
  // of its sequences, and is not watched.
  bool feeds_next(const Step& step) const;
  // Starts the step that `block` describes, which stays as it is until waited for. is_fed: its
  // tokens are the ids found of the rows of the step launched before; both feed the next.
  // Its drafts may be ids that lie on the device.
  void launch(const StepBlock& block, bool is_fed = false, const DraftedTokens& drafted = {});
  // Of the step of `block`, once waited for, with its spans cut to these: Model::replay().
  void replay(const StepBlock& block, std::span<const Span> spans);
  // For the step of `block`. Throws where another rank is gone, without which it does not end.
  void wait(const StepBlock& block);

  // The ids found of the rows of the step launched last, on the device.
  const int32_t* found_ids() const { return static_cast<const int32_t*>(ids_.data()); }
  // Of a row of that step, once waited for: the id drawn where the block says how, else the
  // likeliest, of those that are not masked.
  ops::Greedy found(const StepBlock& block, int64_t row) const;
  // Rows of the step launched last, once waited for, ascending, that logits() will be asked for, if
  // at all: their copies are begun, of as many as there is room for.
  void fetch(std::span<const int64_t> rows);
  // Of a row of that step: all logits [V], valid until the next call.
  std::span<float> logits(int64_t row);

  // Whether a step was launched since the last call for which there was no graph yet: its like will
  // take another time.
  bool was_first() { return std::exchange(was_first_, false); }

  void forget_graphs();  // when what is in flight has ended

 private:
  // One recording serves all steps, or replays, that are alike in these.
  struct Like {
    int32_t tokens, spans, max_context;
    bool is_replay, is_fed, draws;
    auto operator<=>(const Like&) const = default;
  };
  struct Recorded {
    cuda::Graph graph;
    Tensor logits;  // that it leaves
  };
  static constexpr int32_t kFewTokens = 64;
  Tensor run(const Step& step, const ops::Draw* draws);
  // Calls `run`, which launches what is to be done and returns the logits it leaves, or launches
  // its recording.
  Tensor launch_like(const Like& like, const std::function<Tensor()>& run);
  void begin_copy(int64_t row);

  Model& model_;
  ops::Ctx& cx_;
  GpuPages& pages_;
  SeqState kv_;
  RowHistory* history_ = nullptr;
  int64_t max_out_;
  bool use_graphs_, was_first_ = false;
  std::unique_ptr<ops::WholeLogits> whole_;  // none where one rank has all
  Buffer block_, never_, ids_;  // on the device; never_: bit per id; ids_: [R] of the last step
  Buffer greedy_;               // pinned: Greedy [2, R]
  Buffer spans_, replayed_;     // of a replay: pinned, and on the device
  Tensor logits_;               // of the last step, on the device
  RecentlyUsed<Like, bool> came_{kMostGraphs};  // of rare likes, which are recorded the second time
  RecentlyUsed<Like, Recorded> graphs_{kMostGraphs};
  // A row of logits on the host, that of place row % kRowsHere.
  struct RowHere {
    static constexpr int64_t kNone = -1;
    int64_t row = kNone;
    cuda::Event has_come;
    Buffer logits;  // pinned: float [V]
  };
  static constexpr int64_t kRowsHere = 8;
  std::array<RowHere, kRowsHere> here_;
  std::vector<int64_t> wanted_;      // what fetch() was told
  std::array<cuda::Event, 2> done_;  // of the step of each turn
};

}  // namespace nibble
