#include "cuda/device.h"

#include <cuda_runtime.h>

#include "base/error.h"
#include "cuda/check.cuh"
#include "cuda/cluster_probe.h"

namespace nibble::cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::string versions() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return "driver " + version_text(driver) + ", runtime " + version_text(runtime);
}

int num_devices() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Caps open_device() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    throw Error(ErrorKind::kUnsupported,
                std::string("no GPU that CUDA can use: ") +
                    (error != cudaSuccess ? cudaGetErrorString(error) : "none is visible") + " (" +
                    versions() + "); say --device cpu to run on the CPU");
  }
  check(cudaSetDevice(0), "cudaSetDevice");
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, 0), "cudaGetDeviceProperties");
  Caps caps{.sm = 10 * p.major + p.minor,
            .num_sms = p.multiProcessorCount,
            .smem_per_block_bytes = static_cast<int64_t>(p.sharedMemPerBlockOptin),
            .l2_bytes = p.l2CacheSize,
            .memory_bytes = static_cast<int64_t>(p.totalGlobalMem),
            .name = p.name,
            .runs_clusters = runs_clusters()};
  if (caps.sm != NIBBLE_CUDA_SM) {
    throw Error(ErrorKind::kUnsupported,
                "this build of nibble holds kernels for compute capability " +
                    std::to_string(NIBBLE_CUDA_SM / 10) + "." +
                    std::to_string(NIBBLE_CUDA_SM % 10) + ", and " + caps.name + " has " +
                    std::to_string(p.major) + "." + std::to_string(p.minor) +
                    "; build with the preset for it (h200 or spark)");
  }
  return caps;
}

int64_t free_memory() {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

bool shares_host_memory() {
  int is_integrated = 0;
  check(cudaDeviceGetAttribute(&is_integrated, cudaDevAttrIntegrated, 0), "the kind of GPU");
  return is_integrated != 0;
}

}  // namespace nibble::cuda
