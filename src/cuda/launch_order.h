// LaunchOrder: what is complete when a kernel starts, where kernels start before the one in front
// has ended (programmatic dependent launch). Kept on the host, launch by launch, so that no kernel
// has to know what ran before it.
//
// A dependent kernel starts once every block of the kernel in front has released its followers, or
// ended; its wait (griddep_wait) lasts until that kernel is complete, and every kernel waits before
// it ends. So at the start of kernel n + 1 there is complete
//   where n releases after its wait: everything up to n - 1;
//   where n releases before its wait: what was complete when n started;
//   where n + 1 is no dependent launch: everything up to n.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "cuda/caps.h"

namespace nibble::cuda {

// When a kernel lets its followers start. One that never does counts as kAfterWait: its blocks have
// ended then, but nobody has waited for its writes.
enum class Release : uint8_t { kBeforeWait, kAfterWait };

class LaunchOrder {
 public:
  // Nothing is known of what runs: from here on all buffers, and the inputs of a step, count as
  // written by the launch before.
  void begin_step() {
    launched_ = 0;
    complete_ = -1;
    writers_.clear();
  }

  // Whether what `buffer` holds is complete when the next kernel starts: it may read it before its
  // wait.
  bool is_complete(const void* buffer) const {
    const auto writer = writers_.find(buffer);
    return is_complete_launch(writer == writers_.end() ? launched_ : writer->second);
  }
  // The same of what was written before the step: tokens, positions, page tables.
  bool are_inputs_complete() const { return is_complete_launch(0); }

  // The launch made last, or one before it, has written `buffer`.
  void wrote(const void* buffer) { writers_[buffer] = launched_; }

  // Counts a launch. `may_start_early`: it is to be a dependent one. Returns whether it is.
  bool launch(Release release, bool may_start_early) {
    const bool is_dependent = may_start_early && allows_dependent_;
    const int64_t at_start = is_dependent ? complete_ : launched_;
    ++launched_;
    complete_ = release == Release::kAfterWait ? launched_ - 1 : at_start;
    return is_dependent;
  }

  int64_t launched() const { return launched_; }

  // For tests: with false each kernel starts when all before it have ended.
  void allow_dependent(bool allows) { allows_dependent_ = allows; }

 private:
  bool is_complete_launch(int64_t launch) const {
    return launch <= (allows_dependent_ ? complete_ : launched_);
  }

  int64_t launched_ = 0;   // in this step; 0: all that was before it
  int64_t complete_ = -1;  // up to which launch, at the start of the next, if that is dependent
  bool allows_dependent_ = true;
  std::unordered_map<const void*, int64_t> writers_;
};

// A stream and the order of what is launched on it.
struct OrderedStream {
  OrderedStream(StreamHandle stream = nullptr) : handle(stream) {}
  operator StreamHandle() const { return handle; }
  StreamHandle handle;
  LaunchOrder order;
};

}  // namespace nibble::cuda
