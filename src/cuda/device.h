// The GPU that this process uses: device 0. Builds without CUDA have no GPU: open_device() throws.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/caps.h"

namespace nibble::cuda {

// Makes device 0 the one that this process uses and says what it offers. Throws Error(kUnsupported)
// where there is none, the driver is too old, or this build holds no kernels for it.
Caps open_device();

// GPUs that this process may use; 0 where there is no driver.
int num_devices();

// Bytes of its memory that are free now. Where it shares the host's, without what the page cache
// would give back: ask the host there.
int64_t free_memory();
bool shares_host_memory();

// Version of the driver's CUDA and of the runtime in this program: "driver 13.0, runtime 13.0".
std::string versions();

}  // namespace nibble::cuda
