// DraftHead: a small model that drafts from the hidden rows of another, the target.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/model.h"

namespace nibble {

// The rows that a step of a head goes on from: row rows[t] for its token t.
struct DraftInput {
  // Model::kept_rows() of the target; none: the rows of the head's own step before.
  std::span<const Tensor> target;
  const int32_t* rows = nullptr;  // [T], where the step lies
};

// Its forward pass takes at position p the token p + 1 of the text and the target's rows of
// position p, and returns logits over its own vocabulary for token p + 2. Its layer is layer 0 of
// the pages that it is given.
class DraftHead {
 public:
  virtual ~DraftHead() = default;
  virtual Model& model() = 0;
  // Of the target, whose entering rows it reads: for keep_rows().
  virtual const std::vector<int32_t>& target_layers() const = 0;
  // Of each id of its vocabulary, the target's.
  virtual const std::vector<int32_t>& target_ids() const = 0;
  // Of the steps from now on.
  virtual void set_input(DraftInput input) = 0;
};

// A directory, and the target's ids among which an MTP layer chooses: of the head that it shares
// with the target it has these rows, of its own. None: all of them. Each at most once.
struct DraftHeadSource {
  std::string directory;  // or a repo in the Hugging Face cache, at that revision
  std::vector<int32_t> ids = {};
  std::string revision = "main";
};

// What it would need beside a target; throws Error as load_draft_head() does.
struct DraftHeadInfo {
  ModelInfo model;
  std::vector<int32_t> target_layers;
  int64_t target_width;  // of their rows
};
// `shard`: where the target is one of several ranks', whose matrices a head may lack.
DraftHeadInfo describe_draft_head(const DraftHeadSource& head, const std::string& target,
                                  const DenseFormats& dense = {}, const Shard& shard = {});
int64_t describe_draft_scratch(const ops::Ctx& cx, const DraftHeadSource& head,
                               const std::string& target, const StepLimits& limits,
                               const DenseFormats& dense = {}, const Shard& shard = {});

// As plan_kernels(), of a head beside a target.
std::vector<ops::PlanEntry> plan_draft_kernels(const ops::Ctx& cx, const DraftHeadSource& head,
                                               const std::string& target, const DenseFormats& dense,
                                               const DenseFormats& target_dense,
                                               const Shard& shard = {});

// For a target that is loaded. Throws Error(kUnsupported) for one that was made for another model:
// hidden size, vocabulary, layers; or ids that the target lacks.
std::unique_ptr<DraftHead> load_draft_head(ops::Ctx& cx, const DraftHeadSource& head,
                                           const Model& target, const LoadOptions& options);

}  // namespace nibble
