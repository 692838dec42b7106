// Memory of another rank's GPU, which kernels here write as their own: of another process of this
// host, or of this one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tensor/buffer.h"

namespace nibble::cuda {

// Where a buffer is, to be sent to the process that opens it.
struct MemoryHandle {
  uint64_t host = 0;     // which was started when: handles mean nothing elsewhere
  uint64_t process = 0;  // on it; drawn, as containers of one host number theirs alike
  void* data = nullptr;  // as that process sees it
  int64_t bytes = 0;
  std::array<std::byte, 64> handle{};  // the driver's
};

// Of all of a device_buffer(). Throws std::runtime_error where the driver shares none.
MemoryHandle share_memory(const Buffer& buffer);
// Which goes before what it is of does. Throws std::runtime_error where it is on another host, or
// this process's GPU does not reach that one.
Buffer open_memory(const MemoryHandle& handle);

}  // namespace nibble::cuda
