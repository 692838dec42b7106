// NVTX: named ranges on the host's timeline, which Nsight Systems and Nsight Compute show and
// filter by. Without such a tool around the program they cost a few nanoseconds.
#pragma once

#include <functional>

namespace nibble::cuda {

// What it is told the name of starts there, and ends where it is told the next; "end" starts
// nothing.
std::function<void(const char* name)> nvtx_ranges();

}  // namespace nibble::cuda
