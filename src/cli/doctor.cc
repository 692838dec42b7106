// nibble doctor: what this machine has, and which kernel runs each op of a model, with the reason
// for every better one that does not.
#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/dense_flags.h"
#include "cli/device.h"
#include "cli/draft_plan.h"
#include "cli/engine_setup.h"
#include "cli/json.h"
#include "cli/kernel_table.h"
#include "cli/self_check.h"
#include "cli/speculative_config.h"
#include "cli/text_table.h"
#include "cli/version.h"
#include "cpu/isa.h"
#include "cpu/read_bandwidth.h"
#include "cpu/thread_pool.h"
#include "cpu/topology.h"
#include "cuda/device.h"
#include "cuda/nccl.h"
#include "cuda/stream.h"
#include "engine/gpu_steps.h"
#include "io/hub.h"
#include "io/memory.h"
#include "models/model.h"
#include "models/step_work.h"
#include "ops/general_rows.h"
#include "ops/plan.h"
#include "ops/refuse.h"

namespace nibble::cli {
namespace {

struct DoctorFlags {
  std::string model;
  std::string revision = "main";
  std::string cpu_isa = "auto";
  std::string activations = "auto";
  std::string device = "auto";
  std::vector<std::string> kernels;
  std::string kernel_table;
  DenseFlags dense;
  int32_t tensor_parallel_size = 1;
  bool allow_ref = false;
  bool exact = false;
  bool bandwidth = false;
  bool self_check = false;
  std::string kv_cache_dtype = "auto";
  std::string speculative_config;
  bool json = false;
};

constexpr int kProbeRepeats = 5;

// Layers whose site of one op and name runs the same kernel for the same reasons: one row of the
// table.
struct KernelRow {
  std::string op;
  int64_t min_tokens, max_tokens;  // of the steps it serves
  std::string kernel;
  std::vector<int> layers;  // -1: outside layers
  std::vector<ops::Refusal> refused;
  std::string weights;  // format and layout; empty: the op has no matrix
};

void add_kernel_rows(const std::vector<ops::PlanEntry>& plan, const std::string& whose,
                     std::vector<KernelRow>& rows) {
  for (const ops::PlanEntry& entry : plan) {
    const std::string op = whose + ops::site_label({entry.site.op, -1, entry.site.name});
    auto row = std::find_if(rows.begin(), rows.end(), [&](const KernelRow& r) {
      return r.op == op && r.min_tokens == entry.min_tokens && r.max_tokens == entry.max_tokens &&
             r.kernel == entry.kernel && r.refused == entry.refused && r.weights == entry.weights;
    });
    if (row == rows.end())
      row = rows.insert(
          row,
          {op, entry.min_tokens, entry.max_tokens, entry.kernel, {}, entry.refused, entry.weights});
    row->layers.push_back(entry.site.layer);
  }
}

// "0-35", "0,2,4", "-" outside layers.
std::string layers_text(const std::vector<int>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    if (layers[i] < 0) return "-";
    size_t last = i;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    if (!text.empty()) text += ",";
    text += std::to_string(layers[i]);
    if (last > i) text += "-" + std::to_string(layers[last]);
    i = last + 1;
  }
  return text;
}

// "any", "1-4", "513-".
std::string tokens_text(const KernelRow& row) {
  const bool is_last = row.max_tokens == ops::kTokenBuckets.back();
  if (row.min_tokens == 1 && is_last) return "any";
  return std::to_string(row.min_tokens) + "-" + (is_last ? "" : std::to_string(row.max_tokens));
}

bool may_be_elsewhere(const std::string& device) { return device == "gb10" || device == "h200"; }

// The GPU that kernels are shown for; gpu.sm == 0: the CPU. --device may name one that is not here.
cuda::Caps find_gpu(const std::string& device) {
  if (device == "h200") return cuda::h200();
  if (device == "gb10") return cuda::gb10();
  if (choose_device(device, read_device_facts()) == Device::kCuda) return cuda::open_device();
  return {};
}

Json machine_json(const DoctorFlags& flags) {
  const cpu::Cores cores = cpu::read_cores();
  const MachineMemory memory = read_machine_memory();
  const DeviceFacts device = read_device_facts();
  Json json = {{"version", version_text()},
               {"commit", commit_text()},
               {"preset", preset_text()},
               {"cpu", cpu::cpu_model_name()},
               {"isa", cpu::isa_name(cpu::detect_isa())},
               {"hardware_threads", std::thread::hardware_concurrency()},
               {"affinity_threads", cores.affinity},
               {"cgroup_cpus", cores.cgroup_cpus},
               {"threads", cores.usable()},
               {"memory_bytes", memory.total_bytes},
               {"memory_available_bytes", memory.available_bytes},
               {"cgroup_memory_bytes", nullptr},
               {"gpus", device.gpus},
               {"hub_cache", hub_cache_directory().string()}};
  if (memory.cgroup_limit_bytes) json["cgroup_memory_bytes"] = *memory.cgroup_limit_bytes;
  try {
    const cuda::Caps gpu = find_gpu(flags.device);
    json["device"] = gpu.sm == 0 ? "cpu" : gpu.name;
  } catch (const Error& e) {
    if (flags.device != "auto") throw;
    json["device"] = nullptr;
    json["device_refusal"] = e.what();
  }
  if (flags.bandwidth) {
    cpu::ThreadPool pool(cores.usable());
    const auto rate = cpu::measure_read_bandwidth(pool, read_probe_bytes(), kProbeRepeats);
    json["read_bandwidth"] = rate.median;
  }
  return json;
}

Json kernels_json(const std::vector<KernelRow>& rows) {
  Json json = Json::array();
  for (const KernelRow& row : rows) {
    Json refused = Json::array();
    for (const ops::Refusal& r : row.refused)
      refused.push_back({{"kernel", r.kernel}, {"reason", r.reason}});
    json.push_back({{"op", row.op},
                    {"layers", row.layers},
                    {"min_tokens", row.min_tokens},
                    {"max_tokens", row.max_tokens},
                    {"kernel", row.kernel},
                    {"weights", row.weights},
                    {"general", ops::is_general(row.kernel)},
                    {"refused", std::move(refused)}});
  }
  return json;
}

void print_machine(const Json& m) {
  const auto row = [](const char* name, const std::string& value) {
    std::printf("%-12s %s\n", name, value.c_str());
  };
  const auto number = [&](const char* key) { return m[key].dump(); };
  row("nibble", m["version"].get<std::string>() + ", commit " + m["commit"].get<std::string>() +
                    ", preset " + m["preset"].get<std::string>());
  row("cpu", m["cpu"].get<std::string>() + ", " + m["isa"].get<std::string>());
  std::string threads = number("threads") + " of " + number("hardware_threads");
  if (m["cgroup_cpus"].get<double>() > 0)
    threads += ", the cgroup grants " + fixed_digits(m["cgroup_cpus"].get<double>(), 2);
  row("threads", threads);
  std::string memory = format_size(m["memory_bytes"]) + ", " +
                       format_size(m["memory_available_bytes"]) + " available";
  if (!m["cgroup_memory_bytes"].is_null())
    memory += ", the cgroup's limit is " + format_size(m["cgroup_memory_bytes"]);
  row("memory", memory);
  if (m.contains("read_bandwidth"))
    row("reads", fixed_digits(m["read_bandwidth"].get<double>() / 1e9, 1) + " GB/s, measured");
  if (m["gpus"].empty()) row("gpu", "none");
  for (const auto& gpu : m["gpus"]) row("gpu", gpu.get<std::string>());
  row("device", m["device"].is_null() ? "none: " + m["device_refusal"].get<std::string>()
                                      : m["device"].get<std::string>());
  row("hub cache", m["hub_cache"].get<std::string>());
  if (m.contains("weight_bytes") && m["resident_twice"].empty())
    row("weights", format_size(m["weight_bytes"]) + ", each matrix once, in one layout");
  if (m.contains("drafts")) row("drafts", m["drafts"]);
  if (m.contains("kernel_table"))
    row("kernels", "of " + number("tuned") + " ops and sizes of step as " +
                       m["kernel_table"].get<std::string>() + " says");
  if (m.contains("graph_tokens")) {
    row("graphs", "of steps of up to " + number("graph_tokens") + " tokens that decode; the last " +
                      number("most_graphs") + " kinds are kept");
  }
}

// Lines of at most 80 columns, where the words allow it.
std::string wrapped(const std::string& text, const std::string& first, const std::string& next) {
  constexpr size_t kColumns = 80;
  std::string out, line = first;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool is_begun = line.find_first_not_of(' ') != std::string::npos;
    if (is_begun && line.size() + 1 + word.size() > kColumns) {
      out += std::exchange(line, next) + "\n";
      line += word;
    } else {
      line += (is_begun ? " " : "") + word;
    }
  }
  return out + line + "\n";
}

void print_kernels(const std::vector<KernelRow>& rows, const std::vector<std::string>& general) {
  TextTable table({"op", "layers", "tokens", "weights", "kernel"});
  std::string better;
  for (const KernelRow& row : rows) {
    table.add({row.op, layers_text(row.layers), tokens_text(row), row.weights, row.kernel});
    std::string refused;
    for (const ops::Refusal& r : row.refused) {
      if (r.reason != ops::kRunsOnCpus && r.reason != ops::kNeedsGpu)
        refused += wrapped(r.kernel + ": " + r.reason, "  ", "      ");
    }
    if (refused.empty()) continue;
    better += wrapped(row.op + ", layers " + layers_text(row.layers) + ", tokens " +
                          tokens_text(row) + ", rather than " + row.kernel,
                      "", "    ") +
              refused;
  }
  std::printf("\n%s", table.plain().c_str());
  for (const std::string& line : general) std::printf("\n%s", wrapped(line, "", "    ").c_str());
  if (!better.empty()) std::printf("\nbetter ones, and why not\n%s", better.c_str());
}

Json checked_json(const std::vector<CheckedRow>& rows) {
  Json json = Json::array();
  for (const CheckedRow& r : rows)
    json.push_back({{"row", r.row},
                    {"weights", r.weights},
                    {"tokens", r.tokens},
                    {"output", r.output},
                    {"rms", r.rms},
                    {"worst", r.worst},
                    {"most_rms", r.most_rms},
                    {"most_worst", r.most_worst},
                    {"launches", r.launches},
                    {"milliseconds", r.milliseconds},
                    {"passed", r.passed()}});
  return json;
}

// Runs the rows of `model` on this machine.
std::vector<CheckedRow> run_self_check(const DoctorFlags& flags, const std::string& model,
                                       const Shard& shard, ops::Ctx cx, Json& json) {
  if (may_be_elsewhere(flags.device))
    throw Error(ErrorKind::kUsage, "--self-check runs kernels, and --device " + flags.device +
                                       " asks for those of a machine that may not be here");
  cpu::ThreadPool pool(cpu::read_cores().usable());
  cx.pool = &pool;
  std::optional<cuda::Stream> stream;
  if (cx.on_gpu()) cx.stream = stream.emplace().handle();
  if (cx.on_gpu() || cx.kernels.activations == ops::ActFormat::kBF16) cx.activations = DType::kBF16;
  SelfCheck check(cx, kv_dtype(flags.kv_cache_dtype));
  const std::vector<CheckedRow> rows =
      check.run(planned_sites(cx, model, dense_formats(flags.dense), shard));
  json["self_check"] = checked_json(rows);
  json["unchecked"] = check.unchecked();
  return rows;
}

void print_checked(const std::vector<CheckedRow>& rows, const Json& unchecked) {
  TextTable table({"self check", "weights", ">tokens", "output", ">rms", ">worst", ">ms", ""});
  for (const CheckedRow& r : rows)
    table.add({r.row, r.weights, std::to_string(r.tokens), r.output,
               fixed_digits(100 * r.rms, 3) + "%", fixed_digits(100 * r.worst, 2) + "%",
               fixed_digits(r.milliseconds, 1), r.passed() ? "equal" : "WRONG"});
  std::printf("\n%s", table.plain().c_str());
  for (const auto& op : unchecked) std::printf("none of %s\n", op.get<std::string>().c_str());
}

// What --speculative-config adds to what the model takes, and a head's kernels.
void add_drafts(const DoctorFlags& flags, const std::string& model, const ModelInfo& info,
                const ops::Ctx& cx, const Shard& first, std::vector<KernelRow>& rows, Json& json) {
  const DenseFormats dense = dense_formats(flags.dense);
  EngineOptions options{.kv_dtype = kv_dtype(flags.kv_cache_dtype),
                        .speculation = parse_speculative_config(flags.speculative_config)};
  const SpeculationOptions& drafts = options.speculation;
  const DraftNeed need = plan_drafts(model, cx, dense, options, first);
  json["weight_bytes"] = info.weight_bytes + need.weight_bytes;
  json["drafts"] = need.text(info, drafts);
  if (drafts.method == SpeculationOptions::Method::kHead)
    add_kernel_rows(plan_draft_kernels(cx, drafts.head_source, model,
                                       drafts.head_dense.value_or(dense), dense, first),
                    "draft ", rows);
}

void doctor(const DoctorFlags& flags) {
  Json json = machine_json(flags);
  std::vector<KernelRow> rows;
  std::vector<CheckedRow> checked;
  if (flags.self_check && flags.model.empty())
    throw Error(ErrorKind::kUsage, "--self-check runs the kernels of a MODEL: say which");
  if (!flags.model.empty()) {
    ops::Ctx cx;
    cx.kernels.isa = cpu::force_isa(flags.cpu_isa);
    cx.kernels.allow_ref = flags.allow_ref;
    cx.kernels.exact = flags.exact;
    if (!json["device"].is_null()) cx.kernels.gpu = find_gpu(flags.device);
    cx.kernels.activations = activation_format(flags.activations, flags.exact, cx.kernels.gpu);
    force_kernels(flags.kernels, cx.kernels);
    if (!flags.kernel_table.empty()) {
      use_kernel_table(flags.kernel_table,
                       cx.on_gpu() ? cx.kernels.gpu.name : cpu::cpu_model_name(), cx.kernels);
      json["kernel_table"] = flags.kernel_table;
      json["tuned"] = cx.kernels.tuned.size();
    }
    const std::string model = model_argument(find_model(flags.model, flags.revision));
    const Shard first{0, flags.tensor_parallel_size};
    if (std::string why; first.is_split() && cx.on_gpu() && !may_be_elsewhere(flags.device))
      cx.kernels.has_nccl = cuda::find_nccl(why) != nullptr;
    const std::vector<ops::PlanEntry> plan =
        plan_kernels(cx, model, dense_formats(flags.dense), first);
    add_kernel_rows(plan, "", rows);
    json["model"] = flags.model;
    const ModelInfo info = describe_model(model, dense_formats(flags.dense), first);
    json["weight_bytes"] = info.weight_bytes;
    if (!flags.speculative_config.empty()) add_drafts(flags, model, info, cx, first, rows, json);
    json["resident_twice"] = ops::resident_twice(plan);
    if (cx.on_gpu()) {
      json["graph_tokens"] = GpuSteps::kMaxGraphTokens;
      json["most_graphs"] = GpuSteps::kMostGraphs;
    }
    json["kernels"] = kernels_json(rows);
    json["general_rows"] = ops::say_general_rows(plan);
    if (flags.self_check) checked = run_self_check(flags, model, first, cx, json);
  }
  if (flags.json) {
    print_json(json);
  } else {
    print_machine(json);
    if (!flags.model.empty()) print_kernels(rows, json["general_rows"]);
    if (!checked.empty()) print_checked(checked, json["unchecked"]);
  }
  require_passed(checked, json["device"].is_null() ? "" : json["device"].get<std::string>());
  if (!flags.model.empty() && !json["resident_twice"].empty())
    throw Error(ErrorKind::kUnsupported, "weights would lie in memory twice: " +
                                             json["resident_twice"][0].get<std::string>());
}

}  // namespace

void add_doctor(CLI::App& app) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Show this machine, the kernels a model would run on it, and why not better ones");
  command->add_option("MODEL", flags->model, "directory, config.json or repo id");
  command->add_option("--revision", flags->revision, "branch, tag or commit of a repo id")
      ->capture_default_str();
  command->add_option("--cpu-isa", flags->cpu_isa, "as if this were the best the CPU has")
      ->capture_default_str();
  command->add_option("--kernel", flags->kernels, "op=name: force a kernel; may be repeated");
  command->add_option("--kernel-table", flags->kernel_table,
                      "a file of nibble bench ops --tune, for the kernels that it makes run");
  command
      ->add_option("--activations", flags->activations,
                   "auto, float, bf16, int8, int8-row, fp8 or fp4")
      ->check(CLI::IsMember({"auto", "float", "bf16", "int8", "int8-row", "fp8", "fp4"}))
      ->capture_default_str();
  add_dense_flags(*command, flags->dense, "");
  command
      ->add_option(
          "--tensor-parallel-size", flags->tensor_parallel_size,
          "as of serve: the kernels of the first of so many ranks, each with a GPU or CPUs")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--allow-ref", flags->allow_ref, "the reference twins count as kernels");
  command->add_flag("--exact", flags->exact, "the kernels that --exact would take");
  command
      ->add_option("--device", flags->device,
                   "auto, cpu or cuda; gb10 or h200: the kernels of one that is not here")
      ->capture_default_str();
  command->add_flag("--bandwidth", flags->bandwidth, "measure how fast memory is read (1 GiB)");
  command->add_flag("--self-check", flags->self_check,
                    "run each of these kernels on a small problem and compare it with its twin, as "
                    "start-up does on GPUs");
  add_kv_flag(*command, flags->kv_cache_dtype, "");
  command->add_option("--speculative-config", flags->speculative_config,
                      "as of serve: what drafting takes too, and the kernels of its head");
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags] { doctor(*flags); });
}

}  // namespace nibble::cli
