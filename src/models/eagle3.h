// Eagle3 (Li et al., arXiv:2503.01840): a head of one layer that drafts from three hidden rows of
// its target, in the checkpoints of SpecForge, ModelOpt and speculators.
#pragma once

#include "models/draft_head.h"
#include "models/eagle3_config.h"
#include "models/site_model.h"

namespace nibble {

class Eagle3Model : public SiteModel, public DraftHead {
 public:
  using SiteModel::SiteModel;
  // The target's embedding, where the head has none of its own; before it is planned.
  virtual void share_embedding(const Weight& embedding) = 0;
  // d2t of the checkpoint, or every id itself. Throws Error(kCheckpoint) for ids that the target
  // does not have.
  virtual void read_ids(const Checkpoint* checkpoint) = 0;
};

// Names of tensors as `checkpoint` has them; without one, SpecForge's.
std::unique_ptr<Eagle3Model> make_eagle3(Eagle3Config config, const DenseFormats& dense,
                                         Quantization quantization, const Checkpoint* checkpoint);

}  // namespace nibble
