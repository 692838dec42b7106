#include "cuda/cluster_probe.h"

#include "cuda/cluster.cuh"
#include "cuda/launch.cuh"

namespace nibble::cuda {
namespace {

__global__ void meet() {
  cluster_arrive_relaxed();
  cluster_wait();
}

}  // namespace

bool runs_clusters() {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = 2, config.blockDim = 512;
  config.dynamicSmemBytes = 32 * 1024;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  const cudaError_t error = cudaOccupancyMaxActiveClusters(&count, meet, &config);
  if (error != cudaSuccess) cudaGetLastError();  // a refusal is an answer
  return error == cudaSuccess && count > 0;
}

}  // namespace nibble::cuda
