// What follows from EngineOptions before anything is loaded.
#pragma once

#include "engine/engine.h"
#include "engine/kv_plan.h"

namespace nibble {

KvOptions kv_options(const EngineOptions& options);

}  // namespace nibble
