// What drafting takes beside the model, for those who plan memory and ceilings: start-up, plan,
// doctor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "models/model.h"
#include "ops/ctx.h"

namespace nibble::cli {

struct DraftNeed {
  // Of a head; none where drafts come from the text.
  int64_t weight_bytes = 0, bytes_per_draft = 0, scratch_bytes = 0, kv_bytes_per_token = 0;
  std::vector<int32_t> target_layers = {};
  std::string head = {};
  // Of the text: of past answers, and of each request's memory, a token.
  int64_t past_bytes = 0, request_bytes_per_token = 0;

  // "drafts by HEAD: 2.1 MiB of weights, ...", a line; empty: nothing is drafted.
  std::string text(const ModelInfo& target, const SpeculationOptions& options) const;
};

// Of options.speculation, for a model that is not loaded yet; says there what is known of a head:
// its directory, pages, rows, vocabulary. Throws Error for a head that was made for another model.
DraftNeed plan_drafts(const std::string& model, const ops::Ctx& cx,
                      const DenseFormats& models_dense, EngineOptions& options,
                      const Shard& shard = {});

}  // namespace nibble::cli
