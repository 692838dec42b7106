#include "cli/ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "cli/rank_sums.h"
#include "cuda/device.h"
#include "dist/bootstrap.h"
#include "dist/link_speed.h"

namespace nibble::cli {
namespace {

using Clock = std::chrono::steady_clock;

// How a rank that another one started knows which it is; the key is seen by this user alone.
constexpr char kRankVariable[] = "NIBBLE_TP_RANK", kPortVariable[] = "NIBBLE_TP_PORT",
               kKeyVariable[] = "NIBBLE_TP_KEY";
constexpr uint16_t kDefaultPort = 29501;  // vLLM's
constexpr size_t kLeastKey = 16;
// Ranks of one host start within seconds; a person starts those of several.
constexpr std::chrono::seconds kHere{60}, kElsewhere{600};
constexpr std::chrono::seconds kToEnd{5};

const char* started_rank() { return std::getenv(kRankVariable); }

std::string hex(const dist::Nonce& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<uint8_t>(byte) >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Given to all nodes, or made for this run.
std::string read_key(const RankFlags& flags) {
  if (const char* key = std::getenv(kKeyVariable); key != nullptr && *key != '\0') return key;
  if (flags.key_file.empty()) {
    if (flags.nnodes == 1) return hex(dist::random_nonce());
    throw Error(
        ErrorKind::kUsage,
        "--nnodes needs a key that all nodes know: --tensor-parallel-key-file FILE, made by "
        "`openssl rand -hex 32`");
  }
  std::ifstream file(flags.key_file);
  std::string key((std::istreambuf_iterator<char>(file)), {});
  while (!key.empty() && std::isspace(static_cast<unsigned char>(key.back()))) key.pop_back();
  if (!file || key.size() < kLeastKey)
    throw Error(ErrorKind::kUsage, "--tensor-parallel-key-file " + flags.key_file +
                                       " must hold at least " + std::to_string(kLeastKey) +
                                       " characters");
  return key;
}

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

void add_rank_flags(CLI::App& command, RankFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    return command.add_option(name, value, text)->capture_default_str()->group("Ranks");
  };
  add("--tensor-parallel-size", flags.tensor_parallel_size,
      "ranks that share each layer; those of this host are started by nibble itself")
      ->check(CLI::Range(1, 1024));
  add("--nnodes", flags.nnodes, "hosts that the ranks are spread over evenly")
      ->check(CLI::Range(1, 1024));
  add("--node-rank", flags.node_rank, "which of them this is; 0 serves")
      ->check(CLI::NonNegativeNumber);
  add("--master-addr", flags.master_addr, "node 0's own address on the link between the hosts");
  add("--master-port", flags.master_port, "there; 0: 29501, or any free one on a single host");
  add("--tensor-parallel-key-file", flags.key_file,
      "a text that all nodes know and nobody else; with --nnodes");
}

int32_t ranks_here(const RankFlags& flags) { return flags.tensor_parallel_size / flags.nnodes; }

Shard find_shard(const RankFlags& flags) {
  if (flags.tensor_parallel_size % flags.nnodes != 0)
    throw Error(ErrorKind::kUsage, "--tensor-parallel-size must be a multiple of --nnodes");
  if (flags.node_rank >= flags.nnodes)
    throw Error(ErrorKind::kUsage, "--node-rank must be below --nnodes");
  const char* started = flags.tensor_parallel_size > 1 ? started_rank() : nullptr;
  const int32_t rank =
      started != nullptr ? std::atoi(started) : flags.node_rank * ranks_here(flags);
  if (rank < 0 || rank >= flags.tensor_parallel_size)
    throw Error(ErrorKind::kUsage, std::string(kRankVariable) + " is no rank");
  return {rank, flags.tensor_parallel_size};
}

std::string visible_devices(const char* now, int32_t local, int32_t ranks) {
  std::vector<std::string> devices;
  if (now == nullptr) {
    for (int32_t i = 0; i < ranks; ++i) devices.push_back(std::to_string(i));
  } else {
    std::istringstream text(now);
    for (std::string device; std::getline(text, device, ',');) devices.push_back(device);
  }
  if (std::ssize(devices) < ranks)
    throw Error(ErrorKind::kUsage, "CUDA_VISIBLE_DEVICES names " + std::to_string(devices.size()) +
                                       " GPUs for " + std::to_string(ranks) +
                                       " ranks of this host");
  std::rotate(devices.begin(), devices.begin() + local, devices.begin() + local + 1);
  std::string all;
  for (const std::string& device : devices) all += (all.empty() ? "" : ",") + device;
  return all;
}

namespace {

// Ranks on one GPU take turns on it: slow, and enough to try them where there is no second.
bool shares_gpu() { return std::getenv("NIBBLE_TP_SHARE_GPU") != nullptr; }

void require_gpus(int32_t ranks) {
  const int devices = cuda::num_devices();
  if (devices < ranks && !shares_gpu())
    throw Error(ErrorKind::kUnsupported, "--tensor-parallel-size: " + std::to_string(ranks) +
                                             " ranks of this host need a GPU each, and " +
                                             std::to_string(devices) + " can be used");
}

// Of a node's links to others: a management port beside a fast one is a mistake. Where GPUs add up
// NCCL may have found the fast one by itself.
void check_links(const dist::TcpComm& comm, bool on_gpus) {
  if (std::getenv("NIBBLE_TP_ANY_LINK") != nullptr) return;
  for (const dist::Socket& peer : comm.peers()) {
    if (!peer.is_open()) continue;
    const std::string interface = dist::interface_of(peer.local_address());
    const std::string faster = dist::faster_interface(interface, dist::interfaces_with_addresses());
    if (faster.empty()) continue;
    const std::string what = "ranks would talk by " + interface + ", " +
                             std::to_string(dist::link_speed(interface)) + " Mb/s, where " +
                             faster + " has " + std::to_string(dist::link_speed(faster)) +
                             ": give --master-addr the address of rank 0 that it leads to";
    if (!on_gpus) throw Error(ErrorKind::kUsage, what + ", or set NIBBLE_TP_ANY_LINK=1");
    LOG_WARN("%s", what.c_str());
    return;
  }
}

// NCCL begins over sockets, at an interface that it guesses unless it is told.
void tell_nccl_where(const dist::TcpComm& comm, const std::string& master_addr) {
  if (std::getenv("NCCL_SOCKET_IFNAME") != nullptr) return;
  for (const dist::Socket& peer : comm.peers()) {
    if (!peer.is_open()) continue;
    const std::string interface = dist::interface_of(peer.local_address());
    if (interface.empty()) break;
    setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), 0);
    return;
  }
  LOG_WARN("ranks: no interface has the address that leads to %s", master_addr.c_str());
}

}  // namespace

Ranks::Ranks(const RankFlags& flags, const dist::Identity& identity, bool on_gpus) {
  const Shard shard = find_shard(flags);
  const bool is_started = started_rank() != nullptr;
  const std::string key = read_key(flags);
  uint16_t port = flags.master_port;
  if (port == 0 && flags.nnodes > 1) port = kDefaultPort;
  if (const char* given = std::getenv(kPortVariable); is_started && given != nullptr)
    port = static_cast<uint16_t>(std::atoi(given));
  std::unique_ptr<dist::Listener> listener;
  if (shard.rank == 0) {
    listener = std::make_unique<dist::Listener>(flags.master_addr, port);
    port = listener->port();
    LOG_INFO("ranks: waiting for %d at %s port %d", shard.size - 1, flags.master_addr.c_str(),
             port);
  }
  const int32_t here = ranks_here(flags);
  if (on_gpus && !is_started) require_gpus(here);
  for (int32_t r = 1; !is_started && r < here; ++r)
    start(shard.rank + r, port, key,
          on_gpus && !shares_gpu() ? visible_devices(std::getenv("CUDA_VISIBLE_DEVICES"), r, here)
                                   : "");

  const dist::JoinOptions options{.rank = shard.rank,
                                  .size = shard.size,
                                  .address = flags.master_addr,
                                  .port = port,
                                  .key = key,
                                  .identity = identity,
                                  .patience = flags.nnodes > 1 ? kElsewhere : kHere,
                                  .check = [this] { check_started(); }};
  dist::Joined joined =
      listener ? dist::join_as_first(*listener, options) : dist::join_as_other(options);
  comm_ = std::make_unique<dist::TcpComm>(shard.rank, std::move(joined.steps));
  if (flags.nnodes > 1 && !is_started) check_links(*comm_, on_gpus);
  if (on_gpus)
    tell_nccl_where(*comm_, flags.master_addr);  // before there is a thread that reads it
  watch_ = std::make_unique<dist::Watch>(std::move(joined.watch), 0,
                                         [this](const std::string& why) { lost(why); });
  if (!on_gpus) say_how_fast(flags.master_addr);
}

void Ranks::use_gpus(ops::Ctx& cx) {
  auto gpus = std::make_unique<ops::gpu::GpuRanks>(*comm_);
  allow_rows(gpus->why_no_peer_memory(), gpus->why_no_nccl(), cx.kernels);
  if (gpus->has_peer_memory() && !cx.kernels.has_peer_memory)
    gpus->leave_out_peer_memory("--kernel all_reduce=nccl");
  cx.comm = gpus.get();
  {
    const std::lock_guard lock(mutex_);
    gpus_ = std::move(gpus);
    if (!why_.empty()) gpus_->abort();
  }
  const std::string rates = check_gpu_sums(cx);
  if (comm_->rank() == 0)
    LOG_INFO("ranks: %d, %s; %s", comm_->size(),
             shares_gpu() ? "which share a GPU" : "each on a GPU", rates.c_str());
}

Ranks::~Ranks() {
  watch_.reset();
  gpus_.reset();
  comm_.reset();
  const auto until = Clock::now() + (why_.empty() ? kToEnd : std::chrono::seconds(1));
  for (const Child& child : children_) {
    while (waitpid(child.pid, nullptr, WNOHANG) == 0) {
      if (Clock::now() > until) kill(child.pid, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

// The same program with the same arguments, which the variables make another rank of. It ends with
// this one, and takes no notice of what ends this one in good order: Ctrl-C, or a service that
// stops.
void Ranks::start(int32_t rank, uint16_t port, const std::string& key, const std::string& devices) {
  std::vector<std::string> arguments = own_arguments();
  std::vector<std::string> variables;
  for (char** v = environ; *v != nullptr; ++v)
    if (const std::string_view variable = *v;
        !variable.starts_with("NIBBLE_TP_") &&
        (devices.empty() || !variable.starts_with("CUDA_VISIBLE_DEVICES=")))
      variables.emplace_back(variable);
  if (!devices.empty()) variables.push_back("CUDA_VISIBLE_DEVICES=" + devices);
  if (std::getenv("NIBBLE_LOG") == nullptr) variables.emplace_back("NIBBLE_LOG=warn");
  variables.push_back(std::string(kRankVariable) + "=" + std::to_string(rank));
  variables.push_back(std::string(kPortVariable) + "=" + std::to_string(port));
  variables.push_back(std::string(kKeyVariable) + "=" + key);
  const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
  const pid_t parent = getpid(), pid = fork();
  if (pid < 0)
    throw Error(ErrorKind::kMemory, "the system refused to start rank " + std::to_string(rank));
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    signal(SIGINT, SIG_IGN), signal(SIGTERM, SIG_IGN);  // kept by execve
    close_range(3, ~0U, 0);                             // what this rank listens at is not theirs
    execve("/proc/self/exe", argv.data(), envp.data());
    _exit(127);
  }
  children_.push_back({rank, pid});
}

void Ranks::check_started() {
  for (const Child& child : children_) {
    int status = 0;
    if (waitpid(child.pid, &status, WNOHANG) <= 0) continue;
    const int32_t rank = child.rank;
    std::erase_if(children_, [&](const Child& c) { return c.rank == rank; });
    throw Error(ErrorKind::kUnsupported,
                "rank " + std::to_string(rank) + " ended while it started; it said why above");
  }
}

void Ranks::lost(const std::string& why) {
  comm_->abort(why);
  const std::lock_guard lock(mutex_);
  why_ = why;
  if (on_lost_) on_lost_(why);
  if (gpus_ != nullptr) gpus_->abort();
}

void Ranks::on_lost(std::function<void(const std::string&)> call) {
  const std::lock_guard lock(mutex_);
  on_lost_ = std::move(call);
  if (!why_.empty() && on_lost_) on_lost_(why_);
}

void Ranks::abort_sums() {
  const std::lock_guard lock(mutex_);
  if (gpus_ != nullptr) gpus_->abort();
}

// Two sums a layer wait for each other: what a step pays. The sizes are those of a token and of a
// long prompt's chunk.
void Ranks::say_how_fast(const std::string& address) {
  const auto time = [&](size_t floats, int repeats) {
    std::vector<float> values(floats, 1);
    comm_->all_reduce(values);
    const auto start = Clock::now();
    for (int i = 0; i < repeats; ++i) comm_->all_reduce(values);
    return std::chrono::duration<double>(Clock::now() - start).count() / repeats;
  };
  constexpr size_t kToken = 2880, kChunk = 1 << 20;
  const double token = time(kToken, 100), chunk = time(kChunk, 8);
  if (comm_->rank() != 0) return;
  constexpr int kSums = 72;  // of gpt-oss-120b's 36 layers
  LOG_INFO(
      "ranks: %d over TCP at %s; a sum over all of %.1f KB takes %.0f us, of 4 MB %.1f ms "
      "(%.2f GB/s); a token of gpt-oss-120b would wait %.1f ms for its %d",
      comm_->size(), address.c_str(), sizeof(float) * kToken / 1e3, 1e6 * token, 1e3 * chunk,
      sizeof(float) * kChunk / chunk / 1e9, 1e3 * kSums * token, kSums);
}

}  // namespace nibble::cli
