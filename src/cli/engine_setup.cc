#include "cli/engine_setup.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "cli/device.h"
#include "cli/draft_plan.h"
#include "cli/json.h"
#include "cli/kernel_table.h"
#include "cli/progress_bar.h"
#include "cli/rank_identity.h"
#include "cli/self_check.h"
#include "cli/spark_advice.h"
#include "cli/speculative_config.h"
#include "cpu/isa.h"
#include "cpu/thread_pool.h"
#include "cpu/topology.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/nvtx.h"
#include "cuda/random_fill.h"
#include "cuda/stream.h"
#include "engine/engine_options.h"
#include "engine/step_follower.h"
#include "io/memory.h"
#include "models/draft_head.h"
#include "models/step_work.h"

namespace nibble::cli {
namespace {

// Without --max-model-len, a context below this is not worth starting with.
constexpr int32_t kLeastContext = 2048;

// What a GPU changes: kernels are chosen for it, and activations are bf16.
void use_gpu(const EngineFlags& flags, const cuda::Stream& stream, const cuda::Caps& caps,
             ops::Ctx& cx) {
  if (flags.kv_cache_dtype == "f32") {
    throw Error(ErrorKind::kUnsupported, "--kv-cache-dtype f32 is for CPUs; GPUs keep bf16");
  }
  cx.kernels.gpu = caps;
  cx.stream = stream.handle();
  cx.activations = DType::kBF16;
  if (flags.nvtx) cx.on_op = cuda::nvtx_ranges();
}

ops::Ctx make_ctx(const EngineFlags& flags, cpu::ThreadPool& pool, const cuda::Caps& gpu) {
  ops::Ctx cx;
  cx.pool = &pool;
  cx.kernels.activations = activation_format(flags.activations, flags.exact, gpu);
  if (cx.kernels.activations == ops::ActFormat::kBF16 ||
      cx.kernels.activations == ops::ActFormat::kFp8 ||
      cx.kernels.activations == ops::ActFormat::kFp4)
    cx.activations = DType::kBF16;
  cx.kernels.isa = cpu::force_isa(flags.cpu_isa);
  if (cx.kernels.activations == ops::ActFormat::kInt8Row &&
      !cpu::supports(cx.kernels.isa, cpu::Isa::kAvx512Vnni)) {
    throw Error(ErrorKind::kUnsupported,
                "--activations int8-row is for AMX and AVX-512 VNNI, and this runs on " +
                    std::string(cpu::isa_name(cx.kernels.isa)) + "; say --activations int8");
  }
  cx.kernels.allow_ref = flags.allow_ref;
  cx.kernels.exact = flags.exact;
  force_kernels(flags.kernels, cx.kernels);
  if (!flags.kernel_table.empty())
    use_kernel_table(flags.kernel_table, gpu.sm != 0 ? gpu.name : cpu::cpu_model_name(),
                     cx.kernels);
  return cx;
}

// Of a step. Without chunks the longest prompt has to fit into one.
int32_t batched_tokens(const EngineFlags& flags, bool on_gpu) {
  if (flags.max_num_batched_tokens > 0) return flags.max_num_batched_tokens;
  return std::max(default_batched_tokens(on_gpu), flags.chunked_prefill ? 0 : flags.max_model_len);
}

// Drawn drafts are verified by the rule that keeps the most of them, where nothing else is asked
// for: not under --exact, where the text is that without drafts, nor on GPUs, where the rule's rows
// go through the host, nor on several ranks, of which none has whole rows.
SpeculationOptions speculation_options(const EngineFlags& flags, bool on_gpu) {
  SpeculationOptions options = parse_speculative_config(flags.speculative_config);
  const bool is_split = find_shard(flags.ranks).is_split();
  if (options.drawn_rule && (flags.exact || is_split))
    throw Error(
        ErrorKind::kUsage,
        std::string("--speculative-config: drawn drafts go by a rejection_sample_method ") +
            (is_split ? "on one rank alone" : "that --exact rules out: it is another text") +
            "; leave one of them out");
  const bool is_free = options.draws_drafts && options.synthetic_rates.empty();
  if (is_free && !flags.exact && !is_split && !on_gpu && !options.drawn_rule)
    options.drawn_rule = VerificationRule::kStandard;
  return options;
}

EngineOptions engine_options(const EngineFlags& flags, const LoadEngineOptions& options,
                             bool on_gpu) {
  return {.max_num_seqs = flags.max_num_seqs,
          .max_num_batched_tokens = batched_tokens(flags, on_gpu),
          .max_model_len = flags.max_model_len,
          .kv_dtype = kv_dtype(flags.kv_cache_dtype),
          .chunked_prefill = flags.chunked_prefill,
          .graphs = !flags.enforce_eager && !flags.nvtx,
          .prefix_caching = flags.prefix_caching,
          .speculation = speculation_options(flags, on_gpu),
          .log_activity = options.log_activity,
          .masked_ids = options.masked_ids};
}

MemoryBudget budget_of(const EngineFlags& flags, const ops::Ctx& cx) {
  MemoryRule rule{.utilization = flags.gpu_memory_utilization, .budget_bytes = {}};
  if (!flags.memory_budget.empty()) rule.budget_bytes = parse_size(flags.memory_budget);
  rule.shared_with_gpu = cx.on_gpu() && cuda::shares_host_memory();
  if (!cx.on_gpu() || rule.shared_with_gpu) {
    MemoryBudget budget = memory_budget(read_machine_memory(), rule);
    budget.budget_bytes /= ranks_here(flags.ranks);
    return budget;
  }
  return memory_budget(
      {.total_bytes = cx.kernels.gpu.memory_bytes, .available_bytes = cuda::free_memory()}, rule);
}

// The most or the fewest that any rank has.
template <typename T>
T of_ranks(dist::Comm& comm, T mine, const T& (*choose)(const T&, const T&)) {
  std::vector<T> all(comm.size());
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  for (const T& other : all) mine = choose(mine, other);
  return mine;
}

// Pages and states are planned as if each rank had as many heads as any.
void agree_on_groups(dist::Comm& comm, const ModelInfo& info, EngineOptions& options) {
  options.planned_groups = info.groups;
  for (LayerGroup& group : options.planned_groups)
    for (int32_t* size : {&group.num_kv_heads, &group.recurrent.heads, &group.recurrent.channels})
      *size = of_ranks<int32_t>(comm, *size, std::max);
}

// Weights and scratch are as they are; KV cache and states get the rest, but no more than all
// sequences at full length can use: options.kv_bytes. Prints the table; throws where one sequence
// does not fit.
void plan_memory(const EngineFlags& flags, const std::string& model, const ops::Ctx& cx,
                 const LoadEngineOptions& load, EngineOptions& options) {
  const DenseFormats dense = dense_formats(flags.dense);
  const Shard shard = find_shard(flags.ranks);
  const ModelInfo info = describe_model(model, dense, shard);
  Engine::check(info, options);
  if (cx.comm != nullptr) agree_on_groups(*cx.comm, info, options);
  const MemoryBudget budget = budget_of(flags, cx);
  const DraftNeed drafts = plan_drafts(model, cx, dense, options, shard);
  MemoryNeed need{.weight_bytes = info.weight_bytes + drafts.weight_bytes};

  const bool is_free = options.max_model_len == 0;
  const int32_t longest = is_free ? info.max_positions : options.max_model_len;
  need.scratch_bytes = describe_scratch(cx, model, Engine::step_limits(info, options), dense,
                                        drafts.target_layers, shard) +
                       drafts.scratch_bytes +
                       (cx.on_gpu() ? Engine::gpu_bytes(info, options, longest)
                                    : Engine::table_bytes(info, options, longest));
  const int32_t least = is_free ? std::min(kLeastContext, info.max_positions) : longest;
  if (!cx.on_gpu() || cuda::shares_host_memory()) need.request_bytes = load.request_bytes;
  const int64_t rest =
      budget.budget_bytes - need.weight_bytes - need.scratch_bytes - need.request_bytes;
  const int64_t slot = slot_bytes(kv_info(info, options), kv_options(options));
  need.num_states = state_slots(info, kv_options(options), 1);
  need.state_bytes = need.num_states * slot;
  need.kv_cache_bytes = Engine::kv_bytes_for(info, options, least, 1) - need.state_bytes;
  need.kv_tokens = least;
  require_memory(need, budget);

  int64_t useful = Engine::kv_bytes_for(info, options, longest, options.max_num_seqs);
  if (options.max_num_seqs == 1)  // that counts states for the texts of all sequences but one
    useful += kept_states(kv_info(info, options), kv_options(options), longest) * slot;
  options.kv_bytes = std::min(rest, useful);
  if (cx.comm != nullptr)
    options.kv_bytes = of_ranks<int64_t>(*cx.comm, options.kv_bytes, std::min);
  const KvPlan plan = Engine::kv_plan_for(info, options);
  need.num_states = plan.state_slots;
  need.state_bytes = plan.state_slots * slot;
  need.kv_cache_bytes = options.kv_bytes - need.state_bytes;
  need.kv_tokens = plan.tokens;
  if (load.quiet) return;
  std::fputs(memory_table(need, budget).c_str(), stderr);
  if (plan.options.max_num_seqs < options.max_num_seqs) {
    std::fprintf(stderr,
                 "there are states of recurrent layers for %d sequences at once, not for "
                 "--max-num-seqs %d: a smaller --max-model-len leaves room for more\n",
                 plan.options.max_num_seqs, options.max_num_seqs);
  }
  if (const std::string text = drafts.text(info, options.speculation); !text.empty())
    std::fprintf(stderr, "%s\n", text.c_str());
  if (shard.is_split()) return;  // what follows is counted for one rank
  if (cx.kernels.gpu.sm / 10 == 12 && !cx.kernels.exact)
    std::fputs(spark_advice(model, {dense, cx.kernels.activations, options.kv_dtype}).c_str(),
               stderr);
  else if (const std::string advice = faster_dense_advice(cx, model, dense); !advice.empty())
    std::fprintf(stderr, "%s\n", advice.c_str());
}

// What `check` has not run yet of `sites`, which it refuses if it is wrong.
void run_self_check(SelfCheck& check, const ops::Sites& sites, const ops::Ctx& cx, bool quiet) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<CheckedRow> rows = check.run(sites);
  require_passed(rows, cx.kernels.gpu.name);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (!quiet && !rows.empty())
    std::fprintf(stderr, "self check: %zu rows equal their twins here (%.0f ms)\n", rows.size(),
                 took.count());
  for (const std::string& op : check.unchecked())
    if (!quiet && !rows.empty()) std::fprintf(stderr, "self check: none of %s\n", op.c_str());
}

}  // namespace

ops::ActFormat activation_format(const std::string& name, bool exact, const cuda::Caps& gpu) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kUnsupported, "--activations " + name + why);
  };
  if (exact && name != "auto" && name != "bf16") {
    throw Error(ErrorKind::kUsage, "--exact rounds activations to bf16: --activations " + name +
                                       " is something else; leave one of them out");
  }
  if (name == "fp8") return ops::ActFormat::kFp8;
  if (name == "fp4") {
    if (gpu.sm == 90) refuse(" needs matrix instructions for 4 bits, which Hopper lacks: say fp8");
    return ops::ActFormat::kFp4;
  }
  if (exact || name == "bf16") return ops::ActFormat::kBF16;
  if (gpu.sm != 0) {
    if (name == "float") refuse(": GPU kernels multiply bf16 activations; leave it out");
    if (name.starts_with("int8")) refuse(" is for CPUs; GPU kernels take bf16 or fp8");
    return ops::ActFormat::kBF16;
  }
  if (name == "int8-row") return ops::ActFormat::kInt8Row;
  return name == "float" ? ops::ActFormat::kFloat : ops::ActFormat::kInt8;
}

void add_kv_flag(CLI::App& command, std::string& value, const std::string& group) {
  command
      .add_option("--kv-cache-dtype", value,
                  "of keys and values: auto (bf16), bf16, fp8 (E4M3, also called fp8_e4m3) or f32")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "bf16", "fp8", "fp8_e4m3", "f32"}))
      ->group(group);
}

DType kv_dtype(const std::string& value) {
  if (value == "f32") return DType::kF32;
  return value.starts_with("fp8") ? DType::kF8E4M3 : DType::kBF16;
}

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    return command.add_option(name, value, text)->capture_default_str()->group("Engine");
  };
  using CLI::IsMember;
  add("--revision", flags.revision, "branch, tag or commit in the Hugging Face cache");
  add("--load-format", flags.load_format,
      "auto (safetensors and fastsafetensors are the same), or dummy: seeded random weights of any "
      "config")
      ->check(IsMember({"auto", "safetensors", "fastsafetensors", "dummy"}));
  add("--seed", flags.seed, "of dummy weights");
  add("--max-model-len", flags.max_model_len,
      "tokens of prompt and answer; 0: what model and memory allow")
      ->check(CLI::NonNegativeNumber);
  add("--max-num-seqs", flags.max_num_seqs, "sequences in one step")->check(CLI::PositiveNumber);
  add("--max-num-batched-tokens", flags.max_num_batched_tokens,
      "tokens in one step; 0: 512 on CPUs, 8192 on GPUs")
      ->check(CLI::NonNegativeNumber);
  command
      .add_flag("--enable-chunked-prefill,!--no-enable-chunked-prefill", flags.chunked_prefill,
                "long prompts are read in pieces beside those that decode")
      ->capture_default_str()
      ->group("Engine");
  command
      .add_flag("--enforce-eager", flags.enforce_eager,
                "launch each op of a step by itself; no CUDA graphs (CPUs have none)")
      ->group("Engine");
  command
      .add_flag("--enable-layerwise-nvtx-tracing", flags.nvtx,
                "an NVTX range around each op, for Nsight; steps are launched op by op, as by "
                "--enforce-eager, and one at a time")
      ->group("Engine");
  command
      .add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", flags.prefix_caching,
                "prompts that start alike share what was computed")
      ->capture_default_str()
      ->group("Engine");
  add("--speculative-config", flags.speculative_config,
      "draft tokens ahead, and verify several in a step: vLLM's JSON, such as "
      "{\"method\":\"ngram\",\"num_speculative_tokens\":5} or {\"method\":\"eagle3\",\"model\":DIR,"
      "\"num_speculative_tokens\":3} or {\"method\":\"mtp\",\"num_speculative_tokens\":3}; the "
      "text stays the same (of drawn drafts its distribution)");
  add("--gpu-memory-utilization", flags.gpu_memory_utilization,
      "of the device's memory (RAM on CPUs; where both share one, of what is available), for "
      "weights, KV cache and scratch");
  add("--memory-budget", flags.memory_budget, "the same in bytes: 24G, 512M; overrides it");
  add_dense_flags(command, flags.dense, "Engine");
  add_kv_flag(command, flags.kv_cache_dtype, "Engine");
  add("--activations", flags.activations,
      "of matrix products: auto (int8 on CPUs), float, bf16, int8 (blocks of 32, for weights of "
      "4 bits), int8-row (one scale per token: coarser, on AMX and AVX-512 VNNI), fp8 (E4M3, one "
      "scale per token: on GPUs, for mxfp4, nvfp4 and fp8 weights that many tokens meet), fp4 "
      "(E2M1 "
      "in blocks, for mxfp4 and nvfp4 weights that many tokens meet, others as fp8: on a GB10)")
      ->check(IsMember({"auto", "float", "bf16", "int8", "int8-row", "fp8", "fp4"}));
  command
      .add_flag("--exact", flags.exact,
                "bf16 activations and the same bits alone, batched, chunked or preempted")
      ->group("Engine");
  add("--threads", flags.threads, "0: as many as the cgroup grants")->check(CLI::Range(0, 1024));
  add("--cpu-isa", flags.cpu_isa,
      "auto, or the most to be used: scalar, neon, neon_dot, avx2, avx_vnni, avx512, avx512_vnni, "
      "avx512_bf16, "
      "amx");
  command.add_option("--kernel", flags.kernels, "op=name: run this kernel; may be repeated")
      ->group("Engine");
  add("--kernel-table", flags.kernel_table,
      "a file of nibble bench ops --tune: which kernels were the fastest on this machine");
  command
      .add_flag("--allow-ref", flags.allow_ref,
                "let the reference twins run where no kernel does: exact and very slow")
      ->group("Engine");
  add("--device", flags.device, "auto, cpu or cuda")->check(IsMember({"auto", "cpu", "cuda"}));
}

LoadedEngine::LoadedEngine(ModelFiles model_files) : files(std::move(model_files)) {}
LoadedEngine::LoadedEngine(LoadedEngine&&) noexcept = default;
LoadedEngine::~LoadedEngine() {
  if (ranks == nullptr) return;
  ranks->on_lost({});  // it tells the engine, which goes first
  // And waits for its GPU, where a sum of NCCL may wait for good.
  if (engine != nullptr && engine->stats().failed) ranks->abort_sums();
}

std::string model_argument(const ModelFiles& files) {
  return files.directory.empty() ? files.name : files.directory.string();
}

namespace {

// Everything of load_engine() but what is said of it to other ranks where it fails.
void load(const EngineFlags& flags, const LoadEngineOptions& options, LoadedEngine& loaded) {
  const auto start = std::chrono::steady_clock::now();
  const std::string model = model_argument(loaded.files);
  const int threads = flags.threads > 0
                          ? flags.threads
                          : std::max(1, cpu::read_cores().usable() / ranks_here(flags.ranks));
  loaded.pool = std::make_unique<cpu::ThreadPool>(threads);
  const bool on_gpu = choose_device(flags.device, read_device_facts()) == Device::kCuda;
  if (flags.nvtx && !on_gpu) {
    throw Error(ErrorKind::kUsage,
                "--enable-layerwise-nvtx-tracing is for GPUs, and this runs on CPUs");
  }
  const cuda::Caps gpu = on_gpu ? cuda::open_device() : cuda::Caps{};
  loaded.cx = make_ctx(flags, *loaded.pool, gpu);
  if (on_gpu) {
    loaded.stream = std::make_unique<cuda::Stream>();
    use_gpu(flags, *loaded.stream, gpu, loaded.cx);
  }
  loaded.cx.tap = options.tap;
  const Shard shard = find_shard(flags.ranks);
  if (shard.is_split()) {
    loaded.ranks = std::make_unique<Ranks>(flags.ranks, identity_of(flags, loaded), on_gpu);
    loaded.cx.comm = &loaded.ranks->comm();
  }
  // A rank without its rank 0 has nothing to do, whatever it is doing.
  if (shard.rank > 0)
    loaded.ranks->on_lost([rank = shard.rank](const std::string& why) {
      LOG_ERROR("rank %d ends: %s", rank, why.c_str());
      std::_Exit(1);
    });
  if (shard.is_split() && on_gpu) loaded.ranks->use_gpus(loaded.cx);

  EngineOptions& engine = loaded.engine_options;
  engine = engine_options(flags, options, loaded.cx.on_gpu());
  plan_memory(flags, model, loaded.cx, options, engine);

  std::optional<SelfCheck> check;
  if (on_gpu) {
    check.emplace(loaded.cx, engine.kv_dtype);
    run_self_check(*check, planned_sites(loaded.cx, model, dense_formats(flags.dense), shard),
                   loaded.cx, options.quiet);
  }

  LoadOptions load{
      .seed = flags.seed, .dense = dense_formats(flags.dense), .shard = shard, .progress = {}};
  if (flags.load_format == "dummy") load.format = LoadFormat::kDummy;
  if (loaded.cx.on_gpu()) {
    load.memory = {.allocate = cuda::device_buffer,
                   .allocate_staging = cuda::pinned_buffer,
                   .copy = cuda::copy,
                   .random = cuda::random_fill};
  }
  ProgressBar bar("loading");
  load.progress = [&](int64_t done, int64_t total) {
    if (loaded.ranks != nullptr) loaded.ranks->comm().check();
    if (!options.quiet) bar.show(done, total);
  };
  loaded.model = load_model(loaded.cx, model, load);
  if (shard.rank > 0) return;
  if (engine.speculation.method == SpeculationOptions::Method::kHead) {
    load.dense = engine.speculation.head_dense.value_or(load.dense);
    engine.speculation.head =
        load_draft_head(loaded.cx, engine.speculation.head_source, *loaded.model, load);
  }
  loaded.engine = std::make_unique<Engine>(*loaded.model, loaded.cx, engine);
  if (loaded.ranks != nullptr)
    loaded.ranks->on_lost([&e = *loaded.engine](const std::string& why) { e.fail(why); });
  // Its plan may have changed by what the weights hold.
  if (check) run_self_check(*check, sites_of(*loaded.model), loaded.cx, options.quiet);
  loaded.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

LoadedEngine load_engine(const EngineFlags& flags, const LoadEngineOptions& options) {
  LoadedEngine loaded(find_model(flags.model, flags.revision));
  try {
    load(flags, options, loaded);
  } catch (const std::exception& e) {
    if (loaded.ranks != nullptr) loaded.ranks->announce(e.what());
    throw;
  }
  return loaded;
}

bool is_follower(const EngineFlags& flags) { return find_shard(flags.ranks).rank > 0; }

void follow(const EngineFlags& flags) {
  LoadedEngine loaded = load_engine(flags, {.quiet = true});
  try {
    StepFollower(*loaded.model, loaded.cx, loaded.engine_options).run();
  } catch (const std::exception& e) {
    loaded.ranks->announce(e.what());
    throw;
  }
}

}  // namespace nibble::cli
