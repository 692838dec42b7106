// Work in many pieces, done by several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "io/checkpoint.h"

namespace nibble {

// The jobs in pieces of at most piece_bytes, in order of (file, offset). A job that goes beyond its
// tensor is a bug.
std::vector<ReadJob> cut_in_file_order(std::span<const ReadJob> jobs, int64_t piece_bytes);

// Does piece i and returns how many bytes that were, for the progress.
using PieceWorker = std::function<int64_t(int64_t i)>;

// Runs each of `count` pieces once, in order but side by side. `make_worker` is called once on each
// thread, so a worker may own a buffer. The first exception stops the others and is thrown here.
void run_pieces(int64_t count, int threads, int64_t total_bytes,
                const std::function<PieceWorker()>& make_worker, const ReadProgress& progress);

}  // namespace nibble
