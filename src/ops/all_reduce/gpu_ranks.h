// GpuRanks: ranks whose GPUs add up what they have, each the GPU of a process of its own. What lies
// in the host's memory goes over another Comm, as without GPUs.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cuda/nccl.h"
#include "cuda/peer_memory.h"
#include "dist/comm.h"
#include "ops/all_reduce/one_shot.h"
#include "tensor/buffer.h"

namespace nibble::ops::gpu {

class GpuRanks final : public dist::Comm {
 public:
  // Floats of the largest sum that goes in packets in one piece: of those that they are meant for
  // any, at two ranks.
  static constexpr int64_t kCapacity = kMostForPackets;

  // With the GPU that this process has open, all ranks at the same time. `host` outlives it. Throws
  // Error(kUnsupported) where the GPUs have no way to each other.
  explicit GpuRanks(dist::Comm& host);
  ~GpuRanks() override;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  void check() const override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    host_.all_gather(mine, all);
  }
  void all_reduce(std::span<float> values) override { host_.all_reduce(values); }
  void send(int to, std::span<const std::byte> bytes) override { host_.send(to, bytes); }
  void receive(int from, std::span<std::byte> bytes) override { host_.receive(from, bytes); }

  // All ranks have them, or none; one of them there is. Why there is none; empty: there is.
  bool has_peer_memory() const { return why_no_peers_.empty(); }
  bool has_nccl() const { return nccl_ != nullptr; }
  const std::string& why_no_peer_memory() const { return why_no_peers_; }
  const std::string& why_no_nccl() const { return why_no_nccl_; }
  const std::string& nccl_version() const { return nccl_version_; }

  // How long a sum waits for another rank: before any is made.
  void set_patience(std::chrono::nanoseconds patience) {
    peers_.patience_ns = static_cast<uint64_t>(patience.count());
  }
  // As if there were none.
  void leave_out_peer_memory(const std::string& why) { why_no_peers_ = why; }

  const PeerMemory& peers() const { return peers_; }
  // On all ranks at once: `mine`, a device_buffer() that outlives what is returned, and the others'
  // like it, in order of ranks, where kernels and copies of all ranks reach them. None where `why`,
  // of this rank or another, is or becomes other than empty: it says what is in the way.
  std::vector<Buffer> share(const Buffer& mine, std::string& why);
  // On all ranks at once: what is in the way of each, "" for nothing; returns that of the first who
  // says something, on all.
  std::string agree(const std::string& why);
  cuda::Nccl& nccl() const {
    CHECK(nccl_ != nullptr);
    return *nccl_;
  }

  // What moe_down leaves to the norm that makes its sum, which takes it.
  void leave(const LeftChoices& choices) {
    CHECK(choices_.rows == nullptr);
    choices_ = choices;
  }
  LeftChoices take_choices() { return std::exchange(choices_, {}); }

  // From any thread: sums that wait for another rank end, with NaN, and so do all that come.
  void abort();

 private:
  void find_peers();
  void check_nccl() const;
  void find_nccl();

  dist::Comm& host_;
  Buffer shared_, counts_;        // on the GPU: this rank's
  Buffer abort_;                  // page-locked: one word
  std::vector<Buffer> of_ranks_;  // shared_ of each
  PeerMemory peers_;
  LeftChoices choices_;
  std::unique_ptr<cuda::Nccl> nccl_;
  std::string why_no_peers_, why_no_nccl_, nccl_version_;
};

// Of a step that several GPUs compute.
GpuRanks& ranks_of(const Ctx& cx);

// The rows of all_reduce: packets and blocks in peer memory, and NVIDIA's library. t [T, H] f32, in
// and out.
void sum_one_shot(Ctx& cx, const Tensor& t);
void sum_blocks(Ctx& cx, const Tensor& t);
void sum_nccl(Ctx& cx, const Tensor& t);

}  // namespace nibble::ops::gpu
