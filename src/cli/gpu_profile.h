// What one step of a bench case takes on the GPU, op by op or site by site: a decode step, or a
// prompt's last one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_run.h"
#include "cuda/stream.h"
#include "engine/engine.h"

namespace nibble::cli {

struct StepProfile {
  struct Row {
    std::string op;    // or the label of a site
    int launches = 0;  // of the op, in a step
    // All its launches by themselves, by events between the ops. Kernels do not overlap then as
    // they do without: the sum is more than a step takes.
    double alone_us = 0;
    // How much shorter a step gets without the op: what it costs beside the others. None of a model
    // on several ranks, all of which would have to leave it out.
    std::optional<double> saved_us = {};
  };
  std::vector<Row> rows;  // in order of first appearance; empty: was not asked for
  double step_us = 0;     // from token to token (prompt to prompt), as the engine runs them
  double gpu_us = 0;      // from the start of the first op to the end of the last
};

// New tokens of a stream whose steps are looked at: the context has to hold them.
inline constexpr int32_t kProfiledTokens = 32;

// `stream`: the engine's. Runs the case a dozen times; leave_out: and as often without each op.
StepProfile profile_step(Engine& engine, cuda::StreamHandle stream, const BenchCase& what,
                         bool by_site, bool leave_out);

}  // namespace nibble::cli
