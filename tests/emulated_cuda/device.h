// The emulated GPU: its kernels, and the order of what streams are told.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "machine.h"

namespace nibble::emulated {

struct LoadedModule;

struct KernelEntry {
  LoadedModule* module = nullptr;
  std::string name;
  std::unique_ptr<Program> program;  // decoded when it is first needed
  int64_t dynamic_shared_limit = 48 << 10;
};

// Throws PtxError.
Program& program_of(KernelEntry& kernel);
KernelEntry* find_kernel(const void* host_function);

// Checks the shape, and runs the kernel or, where the stream records a graph, puts it there.
cudaError_t launch(KernelEntry& kernel, dim3 grid, dim3 block, dim3 cluster, size_t shared_bytes,
                   void** args, cudaStream_t stream);
// Runs `work` now, or when the graph that the stream records is launched.
cudaError_t in_order(cudaStream_t stream, std::function<cudaError_t()> work);
bool is_capturing(cudaStream_t stream);

// The error that a kernel left: of all that follows, as on a GPU.
cudaError_t sticky_error();
cudaError_t remember(cudaError_t error);  // for cudaGetLastError
// One thing at a time.
std::recursive_mutex& device_mutex();

const cudaDeviceProp& properties();

}  // namespace nibble::emulated
