// Runs read jobs in pieces on several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "io/checkpoint.h"

namespace nibble {

using PieceReader = std::function<void(const ReadJob& piece)>;

// Cuts the jobs into pieces of at most piece_bytes, in order of (file, offset), and runs each once.
// `make_reader` is called once per thread, so a reader may own a buffer. The first exception stops
// the others and is thrown here. A job that goes beyond its tensor is a bug.
void read_in_pieces(std::span<const ReadJob> jobs, int64_t piece_bytes, int threads,
                    const std::function<PieceReader()>& make_reader, const ReadProgress& progress);

}  // namespace nibble
