// Ranks: --tensor-parallel-size. Rank 0 starts those of its own host, or of its node where there
// are several; each node's first rank starts the node's others. All of them find each other, and
// watch each other until the end.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dist/handshake.h"
#include "dist/tcp_comm.h"
#include "dist/watch.h"
#include "models/model.h"
#include "ops/all_reduce/gpu_ranks.h"

namespace CLI {
class App;
}

namespace nibble::cli {

struct RankFlags {
  int32_t tensor_parallel_size = 1;
  int32_t nnodes = 1;
  int32_t node_rank = 0;
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 0;
  std::string key_file;
};

void add_rank_flags(CLI::App& command, RankFlags& flags);
// Which of the ranks this process is. Throws Error(kUsage) for flags that do not go together.
Shard find_shard(const RankFlags& flags);
// Ranks of this host, which share its processors and memory.
int32_t ranks_here(const RankFlags& flags);

// CUDA_VISIBLE_DEVICES of the node's rank `local`, where `now` is this process's (none: not set):
// its own GPU comes first, which is the one that a process uses, and those of the others, whose
// memory it writes, behind it. Throws Error(kUsage) where `now` names fewer.
std::string visible_devices(const char* now, int32_t local, int32_t ranks);

class Ranks {
 public:
  // Starts the others of this node, each on a GPU of its own or all on this CPU, and returns once
  // all are there. Throws Error.
  Ranks(const RankFlags& flags, const dist::Identity& identity, bool on_gpus);
  // Leaves in good order; ends those that it started and that do not end by themselves.
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // How they reach each other from now on: over their GPUs, which cx has open. Says which rows of
  // all_reduce there are; throws Error where there is none, or one is wrong.
  void use_gpus(ops::Ctx& cx);

  dist::Comm& comm() { return gpus_ != nullptr ? static_cast<dist::Comm&>(*gpus_) : *comm_; }
  // Says to the others why this rank ends.
  void announce(const std::string& fault) { watch_->announce(fault); }
  // Called on a thread of its own where a rank is lost; at once, if that was before. Not any more
  // once this returns with another or none.
  void on_lost(std::function<void(const std::string&)> call);
  // Sums of GPUs that wait for another rank end, and so do all that come.
  void abort_sums();

 private:
  void start(int32_t rank, uint16_t port, const std::string& key, const std::string& devices);
  void check_started();
  void lost(const std::string& why);
  void say_how_fast(const std::string& address);

  struct Child {
    int32_t rank;
    pid_t pid;
  };
  std::vector<Child> children_;
  std::unique_ptr<dist::TcpComm> comm_;
  std::mutex mutex_;                          // guards what follows, but for use by others
  std::unique_ptr<ops::gpu::GpuRanks> gpus_;  // none on CPUs
  std::string why_;
  std::function<void(const std::string&)> on_lost_;
  std::unique_ptr<dist::Watch> watch_;
};

}  // namespace nibble::cli
