// Caps: what a GPU offers, as far as the choice of kernels and the memory plan need to know. Plain
// host code: kernels are chosen for machines that are not there.
#pragma once

#include <cstdint>
#include <string>

struct CUstream_st;

namespace nibble::cuda {

using StreamHandle = CUstream_st*;  // the runtime's cudaStream_t

struct Caps {
  int sm = 0;  // compute capability: 90, 121; 0: no GPU
  int num_sms = 0;
  int64_t smem_per_block_bytes = 0;  // what a kernel may opt in to
  int64_t l2_bytes = 0;
  int64_t memory_bytes = 0;
  std::string name;
  // Blocks may meet in clusters; asked of the driver at start-up, as sources disagree about a GB10.
  bool runs_clusters = true;
};

// The machines that nibble has kernels for, as their drivers report them (the GB10: as NVIDIA
// documents it; compute capability 12.x grants 99 KB of shared memory to a block).
Caps h200();
Caps gb10();

}  // namespace nibble::cuda
