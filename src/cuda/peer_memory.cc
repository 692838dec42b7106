#include "cuda/peer_memory.h"

#include <cuda_runtime.h>

#include <cstring>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>

#include "cuda/check.cuh"

namespace nibble::cuda {
namespace {

uint64_t this_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

uint64_t this_process() {
  static const uint64_t drawn = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  return drawn;
}

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(MemoryHandle::handle));

}  // namespace

MemoryHandle share_memory(const Buffer& buffer) {
  MemoryHandle memory{.host = this_host(), .process = this_process()};
  memory.data = buffer.data();
  memory.bytes = buffer.size_bytes();
  cudaIpcMemHandle_t handle;
  check(cudaIpcGetMemHandle(&handle, memory.data), "cudaIpcGetMemHandle");
  std::memcpy(memory.handle.data(), &handle, sizeof(handle));
  return memory;
}

Buffer open_memory(const MemoryHandle& memory) {
  if (memory.host != this_host()) throw std::runtime_error("its GPU is in another host");
  if (memory.process == this_process())
    return Buffer(memory.data, memory.bytes, [](void*, int64_t) {});
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, memory.handle.data(), sizeof(handle));
  void* data = nullptr;
  check(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess),
        "cudaIpcOpenMemHandle");
  return Buffer(data, memory.bytes, [](void* p, int64_t) { cudaIpcCloseMemHandle(p); });
}

}  // namespace nibble::cuda
