// What ranks compare before they begin: two of different builds, models or flags never compute a
// step together.
#pragma once

#include "cli/engine_setup.h"
#include "dist/handshake.h"

namespace nibble::cli {

dist::Identity identity_of(const EngineFlags& flags, const LoadedEngine& loaded);

}  // namespace nibble::cli
