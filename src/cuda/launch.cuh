// launch(): puts a kernel on a stream, with programmatic dependent launch unless told otherwise.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "cuda/check.cuh"
#include "cuda/launch_order.h"

namespace nibble::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t smem_bytes = 0;  // dynamic shared memory
  // Starts while the kernel before still runs: it may touch what that one writes, and write at all,
  // only after griddep_wait(); or, if nothing that ran since what is_complete() says reads or
  // writes what it does, before it. A kernel without that wait must say false.
  bool pdl = true;
  unsigned cluster = 1;  // blocks of a cluster, along x
  // When it calls griddep_launch_dependents(), of launches on an OrderedStream.
  Release release = Release::kBeforeWait;
  // Before its wait it reads what came with the step: tokens, positions, spans, page tables, and
  // keys and values of steps before. Where those are not known to be complete it does not start
  // early. Of all else that it reads before its wait, the caller asks LaunchOrder::is_complete().
  bool reads_inputs = false;
};

// Dynamic shared memory above 48 KB is opted in to, once per kernel and process.
// Throws std::runtime_error.
template <typename... Params, typename... Args>
void launch(cudaStream_t stream, void (*kernel)(Params...), const LaunchShape& shape,
            Args&&... args) {
  // Attributes belong to the function: setting them anew costs a table lookup of the runtime.
  const auto* function = reinterpret_cast<const void*>(kernel);
  // An SM divides its memory between L1 and shared memory anew only when it is empty: with one
  // division for all, a kernel can start beside the one before.
  check(cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "division of L1 and shared memory");
  if (shape.smem_bytes > 32 * 1024) {  // what the kernel declares comes on top of it
    check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.smem_bytes)),
          "shared memory of a kernel");
  }
  cudaLaunchAttribute attributes[2];
  unsigned n = 0;
  if (shape.pdl) {
    attributes[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[n++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[n].id = cudaLaunchAttributeClusterDimension;
    attributes[n++].val.clusterDim = {shape.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = n;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...),
        "kernel launch");
}

// The same, and counted.
template <typename... Params, typename... Args>
void launch(OrderedStream& stream, void (*kernel)(Params...), LaunchShape shape, Args&&... args) {
  shape.pdl = stream.order.launch(
      shape.release, shape.pdl && (!shape.reads_inputs || stream.order.are_inputs_complete()));
  launch(stream.handle, kernel, shape, std::forward<Args>(args)...);
}

// How many clusters of `shape` the GPU runs at once: they lie within one of its parts each.
template <typename... Params>
int clusters_at_once(void (*kernel)(Params...), const LaunchShape& shape) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shape.smem_bytes)),
        "shared memory of a kernel");
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {shape.cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.smem_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), "clusters of a kernel");
  return count;
}

#ifdef __CUDACC__
// Waits until the kernels before have finished and their writes can be seen.
__device__ inline void griddep_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Lets the next kernel start once all blocks of this one have: the earlier, the more of its weights
// are there when its turn comes. What this kernel or those before it write, the next one sees only
// after its own wait; if this one calls it after its own wait, only what this one writes.
__device__ inline void griddep_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
#endif

}  // namespace nibble::cuda
