// NCCL: NVIDIA's sums over GPUs. The library is loaded when ranks ask for it, so that a machine
// without it serves all that one GPU does: $NIBBLE_NCCL or $VLLM_NCCL_SO_PATH, else libnccl.so.2 as
// the system finds it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "cuda/caps.h"

namespace nibble::cuda {

struct NcclLibrary;

// The library, or none where there is none and nobody said where; then `why` says what was tried.
// Throws Error(kUsage) where the one that a variable names cannot be used.
const NcclLibrary* find_nccl(std::string& why);
std::string nccl_version(const NcclLibrary& library);  // "2.28.9"

// By which the ranks of one run find each other; made by one of them.
using NcclId = std::array<std::byte, 128>;
NcclId make_nccl_id(const NcclLibrary& library);

// One rank, on the GPU that this process uses.
class Nccl {
 public:
  // Returns once all ranks are there; `check` is called while they are waited for, and may throw.
  Nccl(const NcclLibrary& library, const NcclId& id, int rank, int size,
       const std::function<void()>& check);
  // Behind all graphs that have sums of it.
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // Sums of all ranks' values in place, each made once, so that all ranks have the same bits.
  // Throws std::runtime_error.
  void all_reduce(float* values, int64_t n, StreamHandle stream);
  // Throws std::runtime_error with what has gone wrong since.
  void check() const;
  // From any thread, one at a time: ends what runs and what is launched. Nothing may be asked of it
  // afterwards.
  void abort();

 private:
  void check(int result, const char* what) const;

  const NcclLibrary& library_;
  void* comm_ = nullptr;
  std::atomic<bool> is_aborted_{false};
  std::thread ending_;
};

}  // namespace nibble::cuda
