// What follows from EngineOptions before anything is loaded.
#pragma once

#include "engine/engine.h"
#include "engine/head_drafter.h"
#include "engine/kv_plan.h"

namespace nibble {

KvOptions kv_options(const EngineOptions& options);

// The model's, with the pages of a head that drafts behind its own.
ModelInfo kv_info(const ModelInfo& info, const EngineOptions& options);
HeadDrafter::Limits head_limits(const ModelInfo& info, const EngineOptions& options);

// Drafts that one step may verify, all sequences together.
int32_t max_drafts(const EngineOptions& options);

}  // namespace nibble
