// nibble bench: tokens per second of prompts and decoding, and how close that is to what the
// machine's memory allows. The cases and flags are llama-bench's.
#include <sys/resource.h>

#include <CLI/App.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/bench_ops.h"
#include "cli/bench_preempt.h"
#include "cli/bench_probe.h"
#include "cli/bench_run.h"
#include "cli/byte_plan.h"
#include "cli/cli.h"
#include "cli/device.h"
#include "cli/engine_setup.h"
#include "cli/floor.h"
#include "cli/gpu_profile.h"
#include "cli/json.h"
#include "cli/routing_balance.h"
#include "cli/speculative_config.h"
#include "cli/text_table.h"
#include "cli/token_ids.h"
#include "cli/version.h"
#include "cpu/isa.h"
#include "cpu/read_bandwidth.h"
#include "cpu/thread_pool.h"
#include "cpu/topology.h"
#include "cuda/device.h"
#include "cuda/device_probe.h"
#include "cuda/read_bandwidth.h"
#include "io/memory.h"
#include "models/step_work.h"

namespace nibble::cli {
namespace {

struct BenchFlags {
  EngineFlags engine;
  std::vector<int32_t> prompts = {512};
  std::vector<int32_t> new_tokens = {128};
  std::vector<int32_t> depths = {0};
  std::vector<int32_t> streams = {1};
  std::vector<std::string> tests;  // in place of the grid of these
  std::string ids_file;            // of the prompt of what decodes; empty: random ids
  std::string profile;             // by "op" or "site"; empty: none
  int repeats = 3;
  std::string output = "table";  // table | md | json
  bool json = false;
};

constexpr int64_t kGpuProbeBytes = int64_t{4} << 30;
constexpr int kProbeRepeats = 5;
constexpr int32_t kWarmUpPrompt = 512, kWarmUpTokens = 8, kLongPrompt = 16384;

struct OpFloor {
  std::string site, op;
  double us;
};

struct BenchRow {
  BenchCase what;
  BenchRate rate;
  double step_bytes = 0;       // expected to be read by one step
  double bytes_per_token = 0;  // the same, shared by the step's tokens
  double bytes_per_s = 0;
  // Tokens per second if the step took as long as reading its bytes; of prompts, where the device's
  // rates of products are known, if each op took the larger of its bytes and its products.
  double ceiling = 0;
  SpeculationCounts drafts;
  StepProfile profile;
  std::vector<OpFloor> floors;  // of the profile's step
};

// Sizes context and batch for the cases, where the user has not.
void fit_engine(std::vector<BenchCase>& cases, bool profiled, EngineFlags& flags) {
  int32_t longest = 0, streams = 1;
  for (BenchCase& c : cases) {
    c.step_tokens = 1 + parse_speculative_config(flags.speculative_config).num_tokens;
    BenchCase grown = c;
    if (profiled && c.decodes()) grown.new_tokens = std::max(c.new_tokens, kProfiledTokens);
    longest = std::max(longest, grown.sequence_length(flags.max_num_batched_tokens));
    streams = std::max(streams, c.streams);
  }
  if (flags.max_model_len == 0) flags.max_model_len = longest;
  flags.max_num_seqs = std::max(flags.max_num_seqs, streams);
}

// On a CPU a short run of the same kind warms all that a long one would: its pages of weights.
BenchCase warm_up_of(BenchCase what) {
  what.prompt = std::min(what.prompt, kWarmUpPrompt);
  if (!what.ids.empty()) what.ids.resize(what.prompt);
  what.depth = std::min(what.depth, kWarmUpPrompt);
  what.new_tokens = std::min(what.new_tokens, kWarmUpTokens);
  return what;
}

BenchRow measure(Engine& engine, const BenchCase& what, int repeats, DType kv, double bandwidth,
                 bool on_gpu, RoutingBalance& balance) {
  // Warms caches and page tables; not counted. What is watched may run slower than what is not, and
  // is cut short where it is long.
  engine.set_tap([&](std::string_view name, int layer,
                     const Tensor& value) { balance.observe(name, layer, value); },
                 "ids");
  const bool is_long = what.depth + what.prompt > kLongPrompt;
  run_case(engine, on_gpu && !is_long ? what : warm_up_of(what), 0);
  engine.set_tap({});
  if (on_gpu) run_case(engine, what, 0);
  std::vector<BenchSample> samples;
  for (int repeat = 1; repeat <= repeats; ++repeat)
    samples.push_back(run_case(engine, what, static_cast<uint64_t>(repeat)));

  const ModelInfo& info = engine.model().info();
  const BenchSample& first = samples.front();
  const double step_tokens = static_cast<double>(first.tokens) / static_cast<double>(first.steps);
  // A prompt chunk reads the pages and state of its sequence once, a decode step those of every
  // stream; it writes a state of each.
  const double kv_bytes = static_cast<double>(
      what.streams *
      (kv_bytes_read(info, kv, static_cast<int64_t>(first.mean_context)) + 2 * state_bytes(info)));
  BenchRow row{.what = what, .rate = rate_of(samples)};
  for (const BenchSample& sample : samples) row.drafts += sample.drafts;
  row.step_bytes = weight_bytes_read(info, std::llround(step_tokens)) + kv_bytes;
  row.bytes_per_token = row.step_bytes / step_tokens;
  row.bytes_per_s = row.bytes_per_token * row.rate.mean;
  row.ceiling = bandwidth / row.bytes_per_token;
  return row;
}

// Experts of the model's routed layers; 0: it has none.
int32_t num_experts(const ModelInfo& info) {
  for (const WeightPart& part : info.parts)
    if (part.name == "experts") return part.choices;
  return 0;
}

std::string kv_text(const BenchFlags& flags) {
  const DType kv = kv_dtype(flags.engine.kv_cache_dtype);
  return kv == DType::kF8E4M3 ? "fp8" : dtype_name(kv);
}

// Of an op or site of the row's profile; 0: its work is not known.
double floor_us(const BenchRow& row, const std::string& op) {
  double sum = 0;
  for (const OpFloor& known : row.floors)
    if (known.op == op || known.site == op) sum += known.us;
  return sum;
}

// The steps of a case's prompt, each of as many tokens as the engine takes at once.
std::vector<StepShape> prompt_steps(const BenchCase& what, int32_t most_tokens, DType kv) {
  std::vector<StepShape> steps;
  for (int32_t at = 0; at < what.prompt; at += most_tokens)
    steps.push_back({.tokens = std::min(most_tokens, what.prompt - at),
                     .context = what.depth + at,
                     .kv_bytes = dtype_bytes(kv),
                     .act_bytes = dtype_bytes(DType::kBF16),
                     .logits = at + most_tokens >= what.prompt});
  return steps;
}

Json profile_json(const BenchRow& row) {
  const StepProfile& profile = row.profile;
  Json ops = Json::array();
  for (const StepProfile::Row& op : profile.rows) {
    const double floor = floor_us(row, op.op);
    ops.push_back({{"op", op.op},
                   {"launches", op.launches},
                   {"us", op.alone_us},
                   {"us_saved_without", op.saved_us ? Json(*op.saved_us) : Json()},
                   {"floor_us", floor > 0 ? Json(floor) : Json()},
                   {"percent_of_floor", floor > 0 ? Json(100 * floor / op.alone_us) : Json()}});
  }
  return {{"step_us", profile.step_us}, {"gpu_us", profile.gpu_us}, {"ops", ops}};
}

void print_profile(const BenchRow& row) {
  const StepProfile& profile = row.profile;
  double alone = 0, saved = 0;
  TextTable table(
      {"op", ">launches", ">us alone", ">floor us", ">of floor", ">us saved", ">each", ">share"});
  for (const StepProfile::Row& op : profile.rows) {
    const double floor = floor_us(row, op.op);
    table.add({op.op, std::to_string(op.launches), fixed_digits(op.alone_us, 1),
               floor > 0 ? fixed_digits(floor, 1) : "-",
               floor > 0 ? fixed_digits(100 * floor / op.alone_us, 0) + "%" : "-",
               op.saved_us ? fixed_digits(*op.saved_us, 1) : "-",
               op.saved_us ? fixed_digits(*op.saved_us / op.launches, 2) : "-",
               op.saved_us ? fixed_digits(100 * *op.saved_us / profile.step_us, 1) + "%" : "-"});
    alone += op.alone_us, saved += op.saved_us.value_or(0);
  }
  std::printf(
      "\none step of %s: %.0f us, %.0f of them from the first op's start to the last one's end.\n"
      "An op alone (events between ops; %.0f us in all)",
      row.what.test().c_str(), profile.step_us, profile.gpu_us, alone);
  if (saved != 0) std::printf(", and what a step saves without it (%.0f)", saved);
  std::printf(":\n%s", table.plain().c_str());
}

Json row_json(const BenchRow& row, const BenchFlags& flags, const ops::Ctx& cx, double bandwidth) {
  return {{"test", row.what.test()},
          {"dense", dense_text(dense_formats(flags.engine.dense))},
          {"activations", ops::act_format_name(cx.kernels.activations)},
          {"kv", kv_text(flags)},
          {"prompt", row.what.depth + row.what.prompt},
          {"new_tokens", row.what.new_tokens},
          {"streams", row.what.streams},
          {"value", row.rate.mean},
          {"deviation", row.rate.deviation},
          {"unit", "tokens/s"},
          {"bytes_per_token", std::llround(row.bytes_per_token)},
          {"bytes_per_s", std::llround(row.bytes_per_s)},
          {"percent_of_read", 100 * row.bytes_per_s / bandwidth},
          {"mean_acceptance_length",
           row.drafts.num_places > 0 ? Json(row.drafts.mean_acceptance_length()) : Json()},
          {"floor", row.ceiling},
          {"peer", nullptr},
          {"peer_value", nullptr},
          {"ratio", row.rate.mean / row.ceiling},
          {"goal", nullptr}};
}

TextTable bench_table(const std::vector<BenchRow>& rows, double bandwidth) {
  const bool drafts = !rows.empty() && rows[0].drafts.num_places > 0;
  std::vector<std::string> head = {"test",  ">tokens/s", ">+/-",        ">MB/token",
                                   ">GB/s", ">of read",  ">ceiling t/s"};
  if (drafts) head.insert(head.end(), {">acceptance length", ">drafts verified"});
  TextTable table(head);
  for (const BenchRow& row : rows) {
    std::vector<std::string> cells = {row.what.test(),
                                      fixed_digits(row.rate.mean, 2),
                                      fixed_digits(row.rate.deviation, 2),
                                      fixed_digits(row.bytes_per_token / 1e6, 2),
                                      fixed_digits(row.bytes_per_s / 1e9, 2),
                                      fixed_digits(100 * row.bytes_per_s / bandwidth, 1) + "%",
                                      fixed_digits(row.ceiling, 2)};
    if (drafts) {
      cells.push_back(fixed_digits(row.drafts.mean_acceptance_length(), 2));
      cells.push_back(std::to_string(row.drafts.num_draft_tokens));
    }
    table.add(cells);
  }
  return table;
}

// Of the device's memory, bytes a second, measured.
double read_bandwidth(bool on_gpu, int threads) {
  if (on_gpu)
    return cuda::measure_read_bandwidth(cuda::open_device(), kGpuProbeBytes, kProbeRepeats);
  cpu::ThreadPool pool(threads);
  return cpu::measure_read_bandwidth(pool, read_probe_bytes(), kProbeRepeats).median;
}

// Of the first request of all.
double time_first_token(Engine& engine) { return run_case(engine, {.prompt = 1}, 0).seconds; }

// The most that this process has had in the host's memory.
int64_t host_bytes_peak() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// What was measured, and on what.
struct BenchReport {
  std::string device, instruction_sets;
  double load_seconds, first_token_seconds;
  double bandwidth, bandwidth_after;  // bytes a second
  cuda::Clocks clocks = {};           // of a GPU, as the tests left it
  DeviceRates rates;
  int64_t weight_bytes, weight_bytes_per_token;
  RoutingBalance::Report routing;
  std::vector<BenchRow> rows;
};

// A GPU's clock is hidden state: a figure without it says little.
Json clocks_json(const cuda::Clocks& clocks) {
  if (clocks.first_hz == 0) return nullptr;
  return {{"after_tests", clocks.first_hz}, {"steady", clocks.steady_hz}};
}

Json report_json(const BenchReport& report, const BenchFlags& flags, const ops::Ctx& cx) {
  Json out = {{"command", command_line()},
              {"commit", commit_text()},
              {"device", report.device},
              {"instruction_sets", report.instruction_sets},
              {"load_seconds", report.load_seconds},
              {"first_token_seconds", report.first_token_seconds},
              {"host_bytes_peak", host_bytes_peak()},
              {"read_bandwidth", report.bandwidth},
              {"read_bandwidth_after", report.bandwidth_after},
              {"clock_hz", clocks_json(report.clocks)},
              {"model", flags.engine.model},
              {"load_format", flags.engine.load_format},
              {"weight_bytes", report.weight_bytes},
              {"weight_bytes_per_token", report.weight_bytes_per_token},
              {"repeats", flags.repeats},
              {"routing_balance",
               {{"choices_per_layer", report.routing.choices},
                {"mean", report.routing.mean},
                {"at_random", report.routing.at_random},
                {"worst_layer", report.routing.worst_layer}}},
              {"rows", Json::array()}};
  for (const BenchRow& row : report.rows) {
    out["rows"].push_back(row_json(row, flags, cx, report.bandwidth));
    if (!row.profile.rows.empty()) out["rows"].back()["profile"] = profile_json(row);
  }
  return out;
}

void print_report(const BenchReport& report, const BenchFlags& flags) {
  std::printf(
      "%s%s, %s of weights; %s; memory reads at %.1f GB/s (after the tests %.1f); first token "
      "after %.1f s\n\n",
      flags.engine.model.c_str(), flags.engine.load_format == "dummy" ? " (random weights)" : "",
      format_size(report.weight_bytes).c_str(), report.device.c_str(), report.bandwidth / 1e9,
      report.bandwidth_after / 1e9, report.first_token_seconds);
  const TextTable table = bench_table(report.rows, report.bandwidth);
  std::printf("%s", (flags.output == "md" ? table.markdown() : table.plain()).c_str());
  for (const BenchRow& row : report.rows)
    if (!row.profile.rows.empty()) print_profile(row);
  if (report.clocks.first_hz > 0)
    std::printf("\nSMs at %.2f GHz behind the tests, at %.2f under products alone\n",
                report.clocks.first_hz / 1e9, report.clocks.steady_hz / 1e9);
  if (report.routing.choices > 0) {
    std::printf(
        "\nrouting: %.3f of even, %.3f in the worst layer; %s choices a layer at random: %.3f\n",
        report.routing.mean, report.routing.worst_layer,
        with_commas(report.routing.choices).c_str(), report.routing.at_random);
  }
}

// Leaves the cases that decode, from these ids on.
void start_from(const std::vector<int32_t>& ids, std::vector<BenchCase>& cases) {
  std::erase_if(cases, [](const BenchCase& c) { return !c.decodes(); });
  for (BenchCase& c : cases) {
    c.ids = ids;
    c.prompt = static_cast<int32_t>(ids.size());
    c.depth = 0;
  }
}

// The cases that the flags name; the engine's flags are made to fit them.
std::vector<BenchCase> choose_cases(BenchFlags& flags, bool on_gpu) {
  if (flags.engine.max_num_batched_tokens == 0)
    flags.engine.max_num_batched_tokens = default_batched_tokens(on_gpu);
  auto cases = bench_cases(flags.prompts, flags.new_tokens, flags.depths, flags.streams);
  if (!flags.tests.empty()) cases.clear();
  for (const std::string& test : flags.tests)
    cases.push_back(parse_bench_case(test, flags.new_tokens.empty() ? 0 : flags.new_tokens[0]));
  if (!flags.ids_file.empty()) start_from(read_token_ids(flags.ids_file), cases);
  if (cases.empty()) throw Error(ErrorKind::kUsage, "nothing to measure: -p and -n are both 0");
  fit_engine(cases, !flags.profile.empty(), flags.engine);
  return cases;
}

// The least time of each op of a step by the kernels that run it, and the ceiling of a prompt that
// follows.
void add_floors(BenchRow& row, const LoadedEngine& loaded, const BenchFlags& flags,
                const DeviceRates& rates) {
  const BenchCase& c = row.what;
  const DType kv = kv_dtype(flags.engine.kv_cache_dtype);
  const std::vector<ops::PlanEntry> plan = ops::plan_entries(sites_of(*loaded.model));
  const auto floors_of = [&](const StepShape& step) {
    std::vector<OpFloor> floors;
    for (const OpWork& op :
         describe_step_work(model_argument(loaded.files), dense_formats(flags.engine.dense), step,
                            find_shard(flags.engine.ranks))) {
      const std::string kernel = kernel_at(plan, op.site, op.tokens);
      floors.push_back({op.site, op.op, 1e6 * floor_seconds(op.bytes, op.flops, kernel, rates)});
    }
    return floors;
  };
  if (c.decodes()) {
    row.floors = floors_of({.streams = c.streams,
                            .context = c.depth + c.prompt,
                            .kv_bytes = dtype_bytes(kv),
                            .act_bytes = dtype_bytes(DType::kBF16)});
    return;
  }
  double us = 0;
  for (const StepShape& step : prompt_steps(c, flags.engine.max_num_batched_tokens, kv)) {
    row.floors = floors_of(step);  // at last of the last one, which a profile shows
    for (const OpFloor& op : row.floors) us += op.us;
  }
  if (rates.bf16 > 0)
    row.ceiling = 1e6 * c.prompt / us;
  else
    row.floors.clear();  // what bounds a prompt is not known
}

BenchReport measure_cases(LoadedEngine& loaded, const std::vector<BenchCase>& cases,
                          const BenchFlags& flags, double bandwidth, int threads, bool quiet) {
  const bool on_gpu = loaded.cx.on_gpu();
  const cuda::Caps& gpu = loaded.cx.kernels.gpu;
  const std::string isa = cpu::isa_name(loaded.cx.kernels.isa);
  const ModelInfo& info = loaded.model->info();
  const DType kv = kv_dtype(flags.engine.kv_cache_dtype);
  BenchReport report{.device = on_gpu ? gpu.name
                                      : cpu::cpu_model_name() + ", " + std::to_string(threads) +
                                            " threads, " + isa,
                     .instruction_sets = on_gpu ? "sm_" + std::to_string(gpu.sm) + "a" : isa,
                     .load_seconds = loaded.load_seconds,
                     .first_token_seconds = loaded.load_seconds + time_first_token(*loaded.engine),
                     .bandwidth = bandwidth,
                     .bandwidth_after = bandwidth,
                     .rates = device_rates(gpu, bandwidth),
                     .weight_bytes = info.weight_bytes,
                     .weight_bytes_per_token = info.weight_bytes_per_token,
                     .routing = {},
                     .rows = {}};
  RoutingBalance balance;
  for (const BenchCase& c : cases) {
    if (!quiet) std::fprintf(stderr, "%s ... ", c.test().c_str());
    BenchRow& row = report.rows.emplace_back(
        measure(*loaded.engine, c, flags.repeats, kv, bandwidth, on_gpu, balance));
    if (!quiet) std::fprintf(stderr, "%.1f tokens/s\n", row.rate.mean);
    if (on_gpu) add_floors(row, loaded, flags, report.rates);
    if (!flags.profile.empty())
      row.profile = profile_step(*loaded.engine, loaded.cx.stream, c, flags.profile == "site",
                                 flags.engine.ranks.tensor_parallel_size == 1);
  }
  // Once more on CPUs, whose other work shows in it; on GPUs there is no room left beside the
  // model.
  if (on_gpu)
    report.clocks = cuda::measure_clocks(gpu, /*seconds=*/0.2);
  else
    report.bandwidth_after = read_bandwidth(on_gpu, threads);
  report.routing = balance.report(std::max(1, num_experts(info)));
  return report;
}

void bench(const BenchFlags& given) {
  BenchFlags flags = given;
  if (flags.engine.model.empty()) {
    throw Error(ErrorKind::kUsage,
                "say which MODEL to measure: a directory, config.json or repo id");
  }
  const bool on_gpu = choose_device(flags.engine.device, read_device_facts()) == Device::kCuda;
  if (!flags.profile.empty() && !on_gpu) {
    throw Error(ErrorKind::kUsage,
                "--profile is for GPUs; nibble bench ops measures the kernels of CPUs");
  }
  const std::vector<BenchCase> cases = choose_cases(flags, on_gpu);
  if (is_follower(flags.engine)) return follow(flags.engine);
  const bool json = flags.json || flags.output == "json";
  const int threads = flags.engine.threads > 0 ? flags.engine.threads : cpu::read_cores().usable();
  const double bandwidth = read_bandwidth(on_gpu, threads);
  LoadedEngine loaded = load_engine(flags.engine, {.quiet = json});
  const BenchReport report = measure_cases(loaded, cases, flags, bandwidth, threads, json);
  if (json)
    print_json(report_json(report, flags, loaded.cx));
  else
    print_report(report, flags);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  flags->engine.max_num_seqs = 1;
  flags->engine.prefix_caching = false;  // the same prompts again are to be computed again
  CLI::App* command = app.add_subcommand(
      "bench", "Measure prompts and decoding, and the share of the memory's speed they reach");
  command->add_option("MODEL", flags->engine.model, "directory, config.json or repo id");
  command->require_subcommand(0, 1);
  const auto list = [&](const char* name, std::vector<int32_t>& value, const char* text) {
    command->add_option(name, value, text)
        ->delimiter(',')
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
  };
  list("-p,--n-prompt", flags->prompts, "prompt tokens, separated by commas; 0: none");
  list("-n,--n-gen", flags->new_tokens, "new tokens; 0: none");
  list("-d,--n-depth", flags->depths, "tokens in the context before");
  list("--streams", flags->streams, "streams decoding together");
  command->add_option("--test", flags->tests,
                      "one row by its name, in place of these: \"tg 8\", \"tg 1 @512\", "
                      "\"pp2048\"; may be repeated");
  command
      ->add_option("--ids-file", flags->ids_file,
                   "token ids that every stream decodes from, in place of random ones")
      ->check(CLI::ExistingFile);
  command
      ->add_flag("--profile{op}", flags->profile,
                 "what each op of a step takes (over ranks: of rank 0); --profile=site: each call "
                 "of it; GPUs only")
      ->check(CLI::IsMember({"op", "site"}));
  command->add_option("-r,--repetitions", flags->repeats, "of each, after one that is not counted")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("-o,--output", flags->output, "table, md or json")
      ->check(CLI::IsMember({"table", "md", "json"}))
      ->capture_default_str();
  command->add_flag("--json", flags->json, "the same as -o json");
  add_engine_flags(*command, flags->engine);
  add_rank_flags(*command, flags->engine.ranks);
  add_bench_serve(*command);
  add_bench_ops(*command);
  add_bench_preempt(*command);
  add_bench_probe(*command);
  command->callback([flags, command] {
    if (command->get_subcommands().empty()) bench(*flags);
  });
}

}  // namespace nibble::cli
