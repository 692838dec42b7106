// Sums over the GPUs of several ranks, as they start: which rows of all_reduce there are, whether
// they are right here, and how fast.
#pragma once

#include <string>

#include "ops/all_reduce/gpu_ranks.h"
#include "ops/ctx.h"

namespace nibble::cli {

// Where the GPUs have one way to each other, its row serves sums of every size. Throws
// Error(kUsage) where --kernel asks for the other one.
void choose_rows(ops::gpu::GpuRanks& ranks, ops::KernelOptions& kernels);

// Runs each row, on all ranks. Returns "a sum of 11.5 KB takes 4.1 us by one_shot, ...". Throws
// Error(kUnsupported) for a row whose sum is not what it is to be.
std::string check_gpu_sums(ops::Ctx& cx);

}  // namespace nibble::cli
