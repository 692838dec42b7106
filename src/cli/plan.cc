// nibble plan: what a model takes on a device and how fast memory alone lets it be, without loading
// it. Works for devices that are not there.
#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/byte_plan.h"
#include "cli/cli.h"
#include "cli/dense_flags.h"
#include "cli/device.h"
#include "cli/draft_plan.h"
#include "cli/engine_setup.h"
#include "cli/json.h"
#include "cli/projection.h"
#include "cli/spark_advice.h"
#include "cli/speculative_config.h"
#include "cli/text_table.h"
#include "cpu/isa.h"
#include "cpu/read_bandwidth.h"
#include "cpu/topology.h"
#include "engine/engine.h"
#include "io/hub.h"
#include "io/memory.h"

namespace nibble::cli {
namespace {

struct PlanFlags {
  std::string model;
  std::string revision = "main";
  std::string device = "auto";
  DenseFlags dense;
  std::string kv_cache_dtype = "auto";
  double gpu_memory_utilization = 0.9;
  std::string memory_budget;
  std::vector<int64_t> contexts = {2048, 8192, 32768, 131072};
  std::vector<int64_t> streams = {1, 2, 4, 8, 16, 32, 64};
  std::vector<int64_t> tokens;  // of prompts: asks for a projection
  std::string activations = "auto";
  int32_t tensor_parallel_size = 1;
  std::string speculative_config;
  bool json = false;
};

constexpr int kProbeRepeats = 5;
constexpr int32_t kMostSequences = 4096;

PlanDevice this_cpu() {
  PlanDevice device{.name = "cpu", .title = cpu::cpu_model_name()};
  cpu::ThreadPool pool(cpu::read_cores().usable());
  device.title +=
      ", " + std::to_string(pool.size()) + " threads, " + cpu::isa_name(cpu::detect_isa());
  device.read_bandwidth =
      cpu::measure_read_bandwidth(pool, read_probe_bytes(), kProbeRepeats).median;
  return device;
}

PlanDevice plan_device(const std::string& flag) {
  if (const auto known = find_plan_device(flag)) return *known;
  if (flag == "cpu") return this_cpu();
  if (flag != "auto") {
    throw Error(ErrorKind::kUsage,
                "--device " + flag + ": plans are made for gb10, h200, cpu or auto");
  }
  const std::vector<std::string> gpus = read_device_facts().gpus;
  if (gpus.empty()) return this_cpu();
  for (const auto& [word, name] : {std::pair{"GB10", "gb10"}, std::pair{"H200", "h200"}})
    if (gpus[0].find(word) != std::string::npos) return *find_plan_device(name);
  throw Error(ErrorKind::kUnsupported,
              "no figures for " + gpus[0] + ": say --device gb10, h200 or cpu");
}

MemoryBudget budget_on(const PlanDevice& device, const PlanFlags& flags) {
  MemoryRule rule{.utilization = flags.gpu_memory_utilization,
                  .shared_with_gpu = device.shared_with_gpu};
  if (!flags.memory_budget.empty()) rule.budget_bytes = parse_size(flags.memory_budget);
  if (device.name == "cpu") return memory_budget(read_machine_memory(), rule);
  return memory_budget({.total_bytes = device.memory_bytes, .available_bytes = device.memory_bytes},
                       rule);
}

// Most sequences of `length` tokens that fit into kv_bytes at once.
int32_t sequences_that_fit(const ModelInfo& info, const EngineOptions& options, int32_t length,
                           int64_t kv_bytes) {
  int32_t fits = 0, over = kMostSequences + 1;
  while (over - fits > 1) {
    const int32_t middle = fits + (over - fits) / 2;
    const bool ok = Engine::kv_bytes_for(info, options, length, middle) <= kv_bytes;
    (ok ? fits : over) = middle;
  }
  return fits;
}

// Tokens per second of all streams together if every byte is read once a step and nothing else
// takes time.
double ceiling(double step_bytes, int64_t streams, double bandwidth) {
  return static_cast<double>(streams) * bandwidth / step_bytes;
}

Json weights_json(const ModelInfo& info) {
  Json parts = Json::array();
  for (const WeightPart& part : info.parts) {
    parts.push_back({{"part", part.name},
                     {"formats", part.formats},
                     {"bytes", part.bytes},
                     {"bytes_per_token", std::llround(weight_bytes_read(part, 1))}});
  }
  return parts;
}

// Of what is there beside the KV cache.
struct Fixed {
  int64_t weight_bytes, scratch_bytes;
};

Json memory_json(const ModelInfo& info, const PlanFlags& flags, const EngineOptions& options,
                 const MemoryBudget& budget, const Fixed& fixed) {
  const int64_t rest = budget.budget_bytes - fixed.weight_bytes - fixed.scratch_bytes;
  Json fits = Json::array();
  for (const int64_t context : flags.contexts) {
    if (context > info.max_positions) continue;
    const auto length = static_cast<int32_t>(context);
    fits.push_back({{"context", context},
                    {"bytes_per_sequence", Engine::kv_bytes_for(info, options, length, 1)},
                    {"sequences", sequences_that_fit(info, options, length, rest)}});
  }
  return {{"total_bytes", budget.total_bytes},
          {"budget_bytes", budget.budget_bytes},
          {"rule", budget.rule},
          {"weight_bytes", fixed.weight_bytes},
          {"scratch_bytes", fixed.scratch_bytes},
          {"left_for_kv_bytes", std::max<int64_t>(rest, 0)},
          {"fits", rest > 0},
          {"kv", std::move(fits)}};
}

Json ceilings_json(const ModelInfo& info, const PlanFlags& flags, const PlanDevice& device,
                   DType kv) {
  Json rows = Json::array();
  for (const int64_t streams : flags.streams) {
    const int64_t context = flags.contexts.front();
    const double weights = weight_bytes_read(info, streams);
    const int64_t state = 2 * state_bytes(info);  // read and written
    const double bytes =
        weights + static_cast<double>(streams * (kv_bytes_read(info, kv, context) + state));
    Json row = {{"streams", streams},
                {"context", context},
                {"weight_bytes", std::llround(weights)},
                {"step_bytes", std::llround(bytes)}};
    // Weights alone: the figure that models are compared by.
    for (const auto& [key, bandwidth] : {std::pair{"nominal", device.nominal_bandwidth},
                                         std::pair{"readable", device.read_bandwidth}}) {
      if (bandwidth == 0) continue;
      row[std::string("weights_only_tokens_per_s_") + key] = ceiling(weights, streams, bandwidth);
      row[std::string("tokens_per_s_") + key] = ceiling(bytes, streams, bandwidth);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// Steps that verify all the drafts of each stream, and what making these reads: as fast as that is
// if all come true, and how many tokens of a stream a step must give to be as fast as plain ones.
Json drafts_json(const ModelInfo& info, const PlanDevice& device, const SpeculationOptions& drafts,
                 const DraftNeed& need, const Json& ceilings) {
  Json rows = Json::array();
  for (const Json& plain : ceilings) {
    const int64_t streams = plain["streams"], tokens = drafts.num_tokens + 1;
    const double made = static_cast<double>(drafts.num_tokens * need.bytes_per_draft),
                 once = plain["step_bytes"].get<double>() - plain["weight_bytes"].get<double>(),
                 bytes = weight_bytes_read(info, streams * tokens) + made + once;
    rows.push_back(
        {{"streams", streams},
         {"step_bytes", std::llround(bytes)},
         {"tokens_per_s_if_all_come_true", ceiling(bytes, streams * tokens, device.read_bandwidth)},
         {"tokens_to_pay", bytes / plain["step_bytes"].get<double>()}});
  }
  return {{"says", need.text(info, drafts)},
          {"num_tokens", drafts.num_tokens},
          {"weight_bytes", need.weight_bytes},
          {"bytes_per_draft", need.bytes_per_draft},
          {"kv_bytes_per_token", need.kv_bytes_per_token},
          {"ceilings", std::move(rows)}};
}

Json step_json(const std::vector<ProjectedOp>& step, const ops::StepShape& shape) {
  Json ops = Json::array();
  double seconds = 0;
  for (const ProjectedOp& op : step) {
    seconds += op.time.seconds();
    ops.push_back({{"op", op.op},
                   {"kernel", op.kernel},
                   {"sites", op.sites},
                   {"bytes", std::llround(op.time.bytes)},
                   {"memory_us", 1e6 * op.time.memory},
                   {"tensor_us", 1e6 * op.time.tensor},
                   {"issue_us", 1e6 * op.time.issue},
                   {"fixed_us", 1e6 * op.time.fixed},
                   {"us", 1e6 * op.time.seconds()},
                   {"bound", op.time.bound()}});
  }
  const int launches = shape.tokens == 1 ? launches_of(step) : 0;
  return {{"streams", shape.streams},
          {"tokens", shape.tokens},
          {"context", shape.context},
          {"us", 1e6 * seconds},
          {"launches", launches > 0 ? Json(launches) : Json()},
          {"tokens_per_s", static_cast<double>(shape.streams * shape.tokens) / seconds},
          {"ops", std::move(ops)}};
}

// Steps of each number of streams at the first context, and prompts, each one step.
Json projection_json(const std::string& model, const DenseFormats& dense, const PlanFlags& flags,
                     DType kv) {
  // Of an H200 the costs of the plain rows alone are known, which it seldom takes.
  if (flags.device != "gb10")
    throw Error(ErrorKind::kUsage, "--tokens projects for --device gb10, not for " + flags.device);
  const auto device = find_projection_device(flags.device);
  const ops::ActFormat activations = activation_format(flags.activations, false, device->gpu);
  Json steps = Json::array();
  const auto add = [&](const ops::StepShape& shape) {
    steps.push_back(step_json(project_step(model, dense, activations, shape, *device), shape));
  };
  const int64_t kv_bytes = dtype_bytes(kv);
  for (const int64_t streams : flags.streams)
    add({.streams = streams,
         .context = flags.contexts.front(),
         .kv_bytes = kv_bytes,
         .act_bytes = 2});
  for (const int64_t tokens : flags.tokens)
    add({.tokens = tokens, .kv_bytes = kv_bytes, .act_bytes = 2});
  return {{"clock_ghz", device->clock / 1e9},
          {"bandwidth", device->bandwidth},
          {"activations", ops::act_format_name(activations)},
          {"steps", std::move(steps)}};
}

void print_projection(const Json& json) {
  std::printf(
      "\nprojected, not measured: SMs at %s GHz, reads at %s GB/s, %s activations, even routing\n",
      fixed_digits(json["clock_ghz"], 2).c_str(),
      fixed_digits(json["bandwidth"].get<double>() / 1e9, 0).c_str(),
      json["activations"].get<std::string>().c_str());
  for (const Json& step : json["steps"]) {
    const int64_t tokens = step["tokens"];
    std::printf(
        "\n%s: %s tokens/s, %s ms%s\n",
        tokens > 1 ? ("a prompt of " + with_commas(tokens)).c_str()
                   : (with_commas(step["streams"]) + " streams at a context of " +
                      with_commas(step["context"]))
                         .c_str(),
        fixed_digits(step["tokens_per_s"], 1).c_str(),
        fixed_digits(step["us"].get<double>() / 1e3, 2).c_str(),
        step["launches"].is_null() ? "" : (", " + step["launches"].dump() + " launches").c_str());
    TextTable table({"op", "kernel", ">sites", ">MB", ">memory us", ">tensor us", ">issue us",
                     ">fixed us", ">us", "bound"});
    for (const Json& op : step["ops"]) {
      const auto us = [&](const char* key) { return fixed_digits(op[key], 0); };
      table.add({op["op"], op["kernel"], op["sites"].dump(),
                 fixed_digits(op["bytes"].get<double>() / 1e6, 1), us("memory_us"), us("tensor_us"),
                 us("issue_us"), us("fixed_us"), us("us"), op["bound"]});
    }
    std::printf("%s", table.plain().c_str());
  }
}

void print_memory(const Json& memory) {
  std::printf(
      "\nmemory: %s in all, %s may be used (%s)\n", format_size(memory["total_bytes"]).c_str(),
      format_size(memory["budget_bytes"]).c_str(), memory["rule"].get<std::string>().c_str());
  if (!memory["fits"].get<bool>()) {
    std::printf(
        "does not fit: weights and scratch take %s\n",
        format_size(memory["weight_bytes"].get<int64_t>() + memory["scratch_bytes"].get<int64_t>())
            .c_str());
    return;
  }
  const int64_t scratch = memory["scratch_bytes"];
  std::printf("weights %s, scratch %s; left for the KV cache: %s\n\n",
              format_size(memory["weight_bytes"]).c_str(),
              scratch > 0 ? format_size(scratch).c_str() : "not counted",
              format_size(memory["left_for_kv_bytes"]).c_str());
  TextTable table({">context", ">KV cache of one", ">sequences that fit"});
  for (const Json& row : memory["kv"]) {
    const int64_t fits = row["sequences"];
    table.add({with_commas(row["context"]), format_size(row["bytes_per_sequence"]),
               (fits == kMostSequences ? "at least " : "") + with_commas(fits)});
  }
  std::printf("%s", table.plain().c_str());
}

void print_ceilings(const Json& rows, const PlanDevice& device) {
  const bool nominal = device.nominal_bandwidth > 0;
  std::printf("\nceilings, all streams together, at a context of %s\n",
              with_commas(rows[0]["context"]).c_str());
  std::vector<std::string> header = {">streams", ">GB of weights", ">GB a step"};
  if (nominal)
    header.push_back(">tokens/s at " + fixed_digits(device.nominal_bandwidth / 1e9, 0) + " GB/s");
  header.push_back(">at " + fixed_digits(device.read_bandwidth / 1e9, nominal ? 0 : 1) +
                   (nominal ? " (readable)" : " GB/s (measured)"));
  TextTable table(header);
  for (const Json& row : rows) {
    std::vector<std::string> cells = {row["streams"].dump(),
                                      fixed_digits(row["weight_bytes"].get<double>() / 1e9, 2),
                                      fixed_digits(row["step_bytes"].get<double>() / 1e9, 2)};
    if (nominal) cells.push_back(fixed_digits(row["tokens_per_s_nominal"], 2));
    cells.push_back(fixed_digits(row["tokens_per_s_readable"], 2));
    table.add(std::move(cells));
  }
  std::printf("%s", table.plain().c_str());
}

void print_drafts(const Json& drafts) {
  std::printf("\n%s\nceilings of steps that verify %s drafts of each stream\n",
              drafts["says"].get<std::string>().c_str(), drafts["num_tokens"].dump().c_str());
  TextTable table({">streams", ">GB a step", ">tokens/s, if all come true",
                   ">tokens a step that plain steps give meanwhile"});
  for (const Json& row : drafts["ceilings"])
    table.add({row["streams"].dump(), fixed_digits(row["step_bytes"].get<double>() / 1e9, 2),
               fixed_digits(row["tokens_per_s_if_all_come_true"], 2),
               fixed_digits(row["tokens_to_pay"], 2)});
  std::printf("%s", table.plain().c_str());
}

// What each rank holds, and reads for a token of one stream: its own part of all.
Json ranks_json(const std::vector<ModelInfo>& ranks) {
  Json rows = Json::array();
  for (const ModelInfo& rank : ranks)
    rows.push_back({{"rank", rows.size()},
                    {"weight_bytes", rank.weight_bytes},
                    {"weight_bytes_per_token", std::llround(weight_bytes_read(rank, 1))},
                    {"kv_heads", rank.groups.front().num_kv_heads},
                    {"state_bytes", state_bytes(rank)}});
  return rows;
}

void print_ranks(const Json& rows) {
  std::printf(
      "\neach of %zu ranks; what follows is of the one that reads the most, and leaves out the\n"
      "sums of all, two a layer:\n",
      rows.size());
  TextTable table(
      {">rank", ">bytes of weights", ">read per token", ">KV heads", ">bytes of a state"});
  for (const Json& row : rows)
    table.add({row["rank"].dump(), with_commas(row["weight_bytes"]),
               with_commas(row["weight_bytes_per_token"]), row["kv_heads"].dump(),
               with_commas(row["state_bytes"])});
  std::printf("%s", table.plain().c_str());
}

// "5.00 GB of weights: at most 54.57 tokens/s at 273 GB/s, 46.57 at 233 (readable)"
std::string one_token(const ModelInfo& info, const PlanDevice& device) {
  const double bytes = weight_bytes_read(info, 1);
  std::string text = fixed_digits(bytes / 1e9, 2) + " GB of weights: at most ";
  if (device.nominal_bandwidth > 0) {
    text += fixed_digits(device.nominal_bandwidth / bytes, 2) + " tokens/s at " +
            fixed_digits(device.nominal_bandwidth / 1e9, 0) + " GB/s, ";
  }
  return text + fixed_digits(device.read_bandwidth / bytes, 2) + " tokens/s at the " +
         fixed_digits(device.read_bandwidth / 1e9, 1) + " GB/s that programs read at";
}

void print_plan(const Json& json, const ModelInfo& info, const PlanDevice& device) {
  std::printf("%s (%s) on %s\n\n", json["model"].get<std::string>().c_str(),
              info.architecture.c_str(), device.title.c_str());
  TextTable weights({"weights", "formats", ">bytes", ">read per token"});
  for (const Json& part : json["weights"]) {
    weights.add({part["part"], part["formats"], with_commas(part["bytes"]),
                 with_commas(part["bytes_per_token"])});
  }
  weights.add(
      {"all", "", with_commas(info.weight_bytes), with_commas(json["weight_bytes_per_token"])});
  std::printf("%s", weights.plain().c_str());
  std::printf("\n%s parameters; KV cache %s bytes per token, and %s per sequence for windows\n",
              with_commas(info.parameters).c_str(), with_commas(json["kv_bytes_per_token"]).c_str(),
              with_commas(json["kv_window_bytes"]).c_str());
  if (const int64_t state = json["state_bytes"]; state > 0) {
    std::printf("recurrent layers: a state of %s bytes per sequence, and one that a step writes\n",
                with_commas(state).c_str());
  }
  std::printf("one token of one stream reads %s\n", one_token(info, device).c_str());
  if (json.contains("ranks")) print_ranks(json["ranks"]);
  print_memory(json["memory"]);
  print_ceilings(json["ceilings"], device);
  if (json.contains("drafts")) print_drafts(json["drafts"]);
  if (json.contains("projection")) print_projection(json["projection"]);
}

std::vector<ModelInfo> describe_ranks(const std::string& model, const DenseFormats& dense,
                                      int32_t size) {
  std::vector<ModelInfo> ranks;
  for (int32_t r = 0; r < size; ++r) ranks.push_back(describe_model(model, dense, {r, size}));
  return ranks;
}

void plan(const PlanFlags& flags) {
  const std::string model = model_argument(find_model(flags.model, flags.revision));
  const DenseFormats dense = dense_formats(flags.dense);
  const std::vector<ModelInfo> ranks = describe_ranks(model, dense, flags.tensor_parallel_size);
  const auto slowest = std::ranges::max_element(
      ranks, {}, [](const ModelInfo& rank) { return weight_bytes_read(rank, 1); });
  const Shard shard{static_cast<int32_t>(slowest - ranks.begin()), flags.tensor_parallel_size};
  const ModelInfo& info = *slowest;
  const PlanDevice device = plan_device(flags.device);
  const DType kv = kv_dtype(flags.kv_cache_dtype);
  EngineOptions options{.kv_dtype = kv,
                        .speculation = parse_speculative_config(flags.speculative_config)};
  DraftNeed drafts = plan_drafts(model, {}, dense, options, shard);
  // Scratch depends on kernels: known for this machine's, which is what "cpu" means.
  Fixed fixed{info.weight_bytes + drafts.weight_bytes, 0};
  if (device.name == "cpu")
    fixed.scratch_bytes = describe_scratch({}, model, Engine::step_limits(info, options), dense,
                                           drafts.target_layers, shard) +
                          drafts.scratch_bytes +
                          Engine::table_bytes(info, options, info.max_positions);
  else
    drafts.scratch_bytes = 0;

  Json json = {{"model", flags.model},
               {"architecture", info.architecture},
               {"parameters", info.parameters},
               {"device", device.name},
               {"device_title", device.title},
               {"nominal_bandwidth", device.nominal_bandwidth},
               {"read_bandwidth", device.read_bandwidth},
               {"dense", dense_text(dense)},
               {"weights", weights_json(info)},
               {"weight_bytes", info.weight_bytes},
               {"weight_bytes_per_token", std::llround(weight_bytes_read(info, 1))},
               {"kv_dtype", dtype_name(kv)},
               {"kv_bytes_per_token", kv_bytes_per_token(info, kv)},
               {"kv_window_bytes", kv_window_bytes(info, kv)},
               {"state_bytes", state_bytes(info)}};
  if (shard.is_split()) json["ranks"] = ranks_json(ranks);
  json["memory"] = memory_json(info, flags, options, budget_on(device, flags), fixed);
  json["ceilings"] = ceilings_json(info, flags, device, kv);
  if (options.speculation.num_tokens > 0)
    json["drafts"] = drafts_json(info, device, options.speculation, drafts, json["ceilings"]);
  if (!flags.tokens.empty() && shard.is_split())
    throw Error(ErrorKind::kUsage,
                "--tokens projects for one rank: leave --tensor-parallel-size out");
  if (!flags.tokens.empty()) json["projection"] = projection_json(model, dense, flags, kv);
  if (flags.json) return print_json(json);
  print_plan(json, info, device);
  if (device.name != "gb10" || shard.is_split()) return;  // projections are of one rank
  const auto activations = activation_format(flags.activations, false, cuda::gb10());
  const std::string advice = spark_advice(model, {dense, activations, kv});
  if (!advice.empty()) std::printf("\n%s", advice.c_str());
}

}  // namespace

void add_plan(CLI::App& app) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand(
      "plan", "Show what a model takes on a device, what fits and the ceiling of its speed");
  command->add_option("MODEL", flags->model, "directory, config.json or repo id")->required();
  const auto add = [&](const char* name, auto& value, const char* text) {
    return command->add_option(name, value, text)->capture_default_str();
  };
  add("--revision", flags->revision, "branch, tag or commit of a repo id");
  add("--device", flags->device, "gb10, h200, cpu (this machine's) or auto");
  add("--context", flags->contexts, "tokens, separated by commas; ceilings are for the first")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  add("--streams", flags->streams, "streams decoding together, separated by commas")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  add("--tokens", flags->tokens,
      "prompts, separated by commas: projects these and the streams op by op, for gb10")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  add("--activations", flags->activations, "of the projection: auto, bf16, fp8 or fp4")
      ->check(CLI::IsMember({"auto", "bf16", "fp8", "fp4"}));
  add_dense_flags(*command, flags->dense, "");
  add_kv_flag(*command, flags->kv_cache_dtype, "");
  add("--gpu-memory-utilization", flags->gpu_memory_utilization, "share of the memory to use");
  add("--memory-budget", flags->memory_budget, "the same in bytes: 24G, 512M; overrides it");
  add("--tensor-parallel-size", flags->tensor_parallel_size, "devices that share each layer")
      ->check(CLI::Range(1, 1024));
  add("--speculative-config", flags->speculative_config,
      "as of serve: counts a head, and the ceilings of steps that verify its drafts");
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags] { plan(*flags); });
}

}  // namespace nibble::cli
