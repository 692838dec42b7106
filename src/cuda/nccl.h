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

// By which the ranks of one run find each other; made by one of them.
using NcclId = std::array<std::byte, 128>;

// The part of nccl.h that is used here, which has stayed as it is since NCCL 2.4.
struct NcclLibrary {
  static constexpr int kSuccess = 0, kInProgress = 7, kFloat32 = 7, kSum = 0;
  int (*get_version)(int*);
  int (*get_unique_id)(NcclId*);
  int (*comm_init_rank)(void** comm, int size, NcclId id, int rank);
  int (*comm_abort)(void* comm);
  int (*comm_get_async_error)(void* comm, int* error);
  int (*all_reduce)(const void* from, void* to, size_t n, int type, int op, void* comm,
                    StreamHandle stream);
  const char* (*get_error_string)(int);
};

// The library, or none where there is none and nobody said where; then `why` says what was tried.
// Throws Error(kUsage) where the one that a variable names cannot be used.
const NcclLibrary* find_nccl(std::string& why);
std::string nccl_version(const NcclLibrary& library);  // "2.28.9"

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
  // From any thread: ends what runs and what is launched. Whatever is asked of it afterwards
  // throws.
  void abort();

 private:
  // A use of comm_, which must not be freed meanwhile. Throws where it may have been.
  class Call {
   public:
    Call(std::atomic<int>& calls, const std::atomic<bool>& is_aborted);
    ~Call() { --calls_; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    std::atomic<int>& calls_;
  };
  void check(int result, const char* what) const;

  const NcclLibrary& library_;
  void* comm_ = nullptr;
  std::atomic<bool> is_aborted_{false};
  mutable std::atomic<int> calls_{0};  // under way
  std::thread ending_;
};

}  // namespace nibble::cuda
