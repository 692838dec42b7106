#include "cuda/memory.h"

#include <cuda_runtime.h>

#include <string>

#include "base/check.h"
#include "base/error.h"
#include "cuda/check.cuh"

namespace nibble::cuda {

Buffer device_buffer(int64_t bytes) {
  CHECK(bytes >= 0);
  if (bytes == 0) return {};
  void* data = nullptr;
  if (cudaMalloc(&data, static_cast<size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();  // not sticky
    throw Error(ErrorKind::kMemory, "the GPU refused " + std::to_string(bytes) +
                                        " bytes of memory; free some, or lower "
                                        "--gpu-memory-utilization or --memory-budget");
  }
  return Buffer(data, bytes, [](void* p, int64_t) { cudaFree(p); });
}

Buffer pinned_buffer(int64_t bytes) {
  CHECK(bytes >= 0);
  if (bytes == 0) return {};
  void* data = nullptr;
  if (cudaMallocHost(&data, static_cast<size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();
    throw Error(ErrorKind::kMemory,
                "the system refused to page-lock " + std::to_string(bytes) + " bytes of memory");
  }
  return Buffer(data, bytes, [](void* p, int64_t) { cudaFreeHost(p); });
}

void copy_async(void* to, const void* from, int64_t bytes, StreamHandle stream) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream), "copy");
}

void zero_async(void* data, int64_t bytes, StreamHandle stream) {
  check(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream), "memset");
}

void wait(StreamHandle stream) { check(cudaStreamSynchronize(stream), "the GPU's work"); }

void copy(void* to, const void* from, int64_t bytes) {
  check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault), "copy");
  // Of pageable host memory the last piece may still be on its way.
  check(cudaStreamSynchronize(cudaStreamLegacy), "copy");
}

void fill(void* data, uint8_t byte, int64_t bytes) {
  check(cudaMemset(data, byte, static_cast<size_t>(bytes)), "memset");
  check(cudaDeviceSynchronize(), "memset");
}

}  // namespace nibble::cuda
