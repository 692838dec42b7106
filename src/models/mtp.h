// The MTP layer of Qwen3-Next and its heirs (tensors mtp.*): a head that drafts from what its
// target's last norm gives, with the target's embedding and head.
#pragma once

#include <memory>

#include "models/draft_head.h"
#include "models/mtp_config.h"
#include "models/site_model.h"

namespace nibble {

class MtpModel : public SiteModel, public DraftHead {
 public:
  using SiteModel::SiteModel;
  virtual const MtpConfig& config() const = 0;
  // The target's embedding and head, planned or loaded as that is, or the head's rows of `ids`;
  // before it is planned.
  virtual void share_matrices(const SiteModel& target) = 0;
};

// `ids` of the target that it drafts; none: all.
std::unique_ptr<MtpModel> make_mtp(const Config& config, const DenseFormats& dense,
                                   const std::vector<int32_t>& ids);

}  // namespace nibble
