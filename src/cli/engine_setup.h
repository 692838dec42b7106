// What score, serve, chat and bench share: the flags that say how a model runs, and the code that
// turns them into a loaded model with an engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/dense_flags.h"
#include "cli/ranks.h"
#include "engine/engine.h"
#include "io/hub.h"
#include "models/model.h"
#include "ops/ctx.h"

namespace CLI {
class App;
}
namespace nibble::cpu {
class ThreadPool;
}
namespace nibble::cuda {
class Stream;
}

namespace nibble::cli {

struct EngineFlags {
  std::string model;  // the command's own MODEL argument; not added by add_engine_flags
  std::string revision = "main";
  std::string load_format = "auto";  // auto | dummy
  uint64_t seed = 0;                 // of dummy weights
  int32_t max_model_len = 0;         // 0: what the model and the memory allow
  int32_t max_num_seqs = 16;
  int32_t max_num_batched_tokens = 0;  // 0: default_batched_tokens()
  bool chunked_prefill = true;
  bool enforce_eager = false;
  bool nvtx = false;  // a range around each op's launches; steps are not graphs then
  bool prefix_caching = true;
  std::string speculative_config;  // vLLM's JSON object; empty: nothing is drafted
  double gpu_memory_utilization = 0.9;
  std::string memory_budget;  // "24G", "512MiB"; empty: from the machine
  DenseFlags dense;
  std::string kv_cache_dtype = "auto";  // auto | bf16 | fp8 | fp8_e4m3 | f32
  std::string activations = "auto";     // auto | float | bf16 | int8 | int8-row | fp8 | fp4
  bool exact = false;
  int threads = 0;                   // 0: what the cgroup grants
  std::string cpu_isa = "auto";      // auto, or the widest that may be used
  std::vector<std::string> kernels;  // op=row, each forces one row of an op's table
  std::string kernel_table;          // a file: which kernels were the fastest here
  bool allow_ref = false;            // the twins may run where no kernel does
  std::string device = "auto";       // auto | cpu | cuda
  RankFlags ranks;                   // of commands that add_rank_flags() was called for
};

// Tokens of a step where --max-num-batched-tokens does not say: prompts in pieces that keep the
// device busy and let others decode in between.
constexpr int32_t default_batched_tokens(bool on_gpu) { return on_gpu ? 8192 : 512; }

// Adds every flag above but MODEL, with defaults as `flags` has them when called.
void add_engine_flags(CLI::App& command, EngineFlags& flags);

// --activations as the kernels' choice takes it, on `gpu` or (sm 0) on a CPU. Throws Error(kUsage)
// where --exact rules it out, Error(kUnsupported) for what the device has no kernels for.
ops::ActFormat activation_format(const std::string& name, bool exact, const cuda::Caps& gpu);

// --kv-cache-dtype alone, for commands without an engine, and what it means.
void add_kv_flag(CLI::App& command, std::string& value, const std::string& group);
DType kv_dtype(const std::string& value);

// What describe_model() and load_model() take for files of any revision.
std::string model_argument(const ModelFiles& files);

// A model in memory and the engine over it. The engine's thread is not started.
struct LoadedEngine {
  explicit LoadedEngine(ModelFiles model_files);
  LoadedEngine(LoadedEngine&&) noexcept;
  LoadedEngine& operator=(LoadedEngine&&) = delete;
  ~LoadedEngine();

  ModelFiles files;
  std::unique_ptr<Ranks> ranks;  // none where this process is the only one
  std::unique_ptr<cpu::ThreadPool> pool;
  std::unique_ptr<cuda::Stream> stream;  // of the GPU, where the model runs on one
  ops::Ctx cx;
  std::unique_ptr<Model> model;
  EngineOptions engine_options;    // as granted
  std::unique_ptr<Engine> engine;  // of rank 0 alone
  double load_seconds = 0;         // all of it: memory, weights, kernels
};

struct LoadEngineOptions {
  std::vector<int32_t> masked_ids;  // never sampled: what the tokenizer cannot decode
  bool quiet = false;               // no memory table, no progress bar on stderr
  int64_t request_bytes = 0;        // of host memory, planned for besides
  bool log_activity = false;        // the engine says every ten seconds what it does
  ops::Tap tap = {};                // sees every named buffer of a step
};

// Finds MODEL, plans the memory (prints the table; refuses with advice), loads with a progress bar
// and makes the engine. With ranks, all of this on each of them. Throws Error.
LoadedEngine load_engine(const EngineFlags& flags, const LoadEngineOptions& options);

// What a command does whose process is a rank other than 0: as rank 0 says, until that one ends.
bool is_follower(const EngineFlags& flags);
void follow(const EngineFlags& flags);

}  // namespace nibble::cli
