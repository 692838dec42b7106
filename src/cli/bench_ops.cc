// nibble bench ops: every kernel that runs here, by itself, on the shapes of a model with random
// weights: the bytes it must move, the time that takes at the read bandwidth measured in the same
// run or its arithmetic at the device's best rate (its floor), and the share of it that it reaches.
// With --tune it times what could run each op at each size of step, and writes which was fastest.
#include "cli/bench_ops.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/device.h"
#include "cli/engine_setup.h"
#include "cli/floor.h"
#include "cli/json.h"
#include "cli/kernel_table.h"
#include "cli/op_launch.h"
#include "cli/text_table.h"
#include "cli/version.h"
#include "cpu/isa.h"
#include "cpu/read_bandwidth.h"
#include "cpu/thread_pool.h"
#include "cpu/topology.h"
#include "cuda/device.h"
#include "cuda/graph.h"
#include "cuda/read_bandwidth.h"
#include "cuda/stream.h"
#include "io/hub.h"
#include "models/step_work.h"
#include "ops/site.h"

namespace nibble::cli {
namespace {

using ops::Op;

struct OpsFlags {
  std::string model;            // whose shapes; empty: gpt-oss-20b's on CPUs, 120b's on GPUs
  std::vector<int64_t> tokens;  // empty: by the device
  std::vector<int64_t> contexts = {4096};
  int64_t span = 1;
  std::string only;  // of "op/kernel"
  std::string device = "auto";
  std::string tune;  // a file to write
  double seconds = 0.3;
  int threads = 0;
  std::string cpu_isa = "auto";
  bool json = false;
};

constexpr int kLeastRuns = 5;
// Of a GPU's graph: launches that follow each other as in a step.
constexpr int kLaunches = 16, kPromptLaunches = 4, kReplays = 5;
// A bucket without an end is timed by this many tokens.
constexpr int64_t kLongStep = 8192;
// Another kernel than the table's first must be this much faster to be written down.
constexpr double kNoise = 0.98;

struct Reached {
  Op op;
  std::string name, kernel, weights;
  int64_t tokens = 0, bytes = 0, flops = 0;
  double seconds = 0;
};

class OpsBench {
 public:
  OpsBench(const OpsFlags& flags, std::vector<ops::Problem> problems, cpu::ThreadPool& pool,
           const cuda::Stream* stream, const cuda::Caps& gpu)
      : flags_(flags), problems_(std::move(problems)) {
    cx_.pool = &pool;
    cx_.kernels.isa = cpu::force_isa(flags.cpu_isa);
    cx_.kernels.gpu = gpu;
    if (stream == nullptr) return;
    cx_.stream = stream->handle();
    cx_.activations = DType::kBF16;
    counters_ = cx_.allocate(ops::Ctx::kNumCounters * int64_t{4});
    cx_.counters = static_cast<uint32_t*>(counters_.data());
  }

  const std::vector<Reached>& run(const std::vector<int64_t>& tokens) {
    for (const int64_t n : tokens)
      for (const ops::Problem& problem : problems_)
        std::visit(
            [&](auto desc) {
              desc.tokens = n;
              measure(desc);
            },
            problem);
    return reached_;
  }

 private:
  using Run = std::function<int64_t(size_t turn)>;  // OpLaunch::run

  // The median time of a launch.
  double time(const Run& launch, int64_t tokens, int64_t& bytes) {
    size_t turn = 0;
    bytes = launch(turn++);
    return cx_.on_gpu() ? time_graph(launch, tokens, bytes) : time_calls(launch, bytes);
  }
  double time_calls(const Run& launch, int64_t& bytes) {
    std::vector<double> seconds;
    double sum = 0;
    int64_t all_bytes = 0;
    while (sum < flags_.seconds || seconds.size() < kLeastRuns) {
      const auto start = std::chrono::steady_clock::now();
      all_bytes += launch(seconds.size() + 1);
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      sum += seconds.back();
    }
    bytes = all_bytes / static_cast<int64_t>(seconds.size());
    return median(seconds);
  }
  double time_graph(const Run& launch, int64_t tokens, int64_t& bytes) {
    const int launches = tokens > OpOperands::kMostDecoding ? kPromptLaunches : kLaunches;
    int64_t all_bytes = 0;
    const cuda::Graph graph(cx_.stream, [&] {
      for (int i = 0; i < launches; ++i) all_bytes += launch(static_cast<size_t>(i));
    });
    bytes = all_bytes / launches;
    cuda::Event begin(cuda::Event::Kind::kTiming), end(cuda::Event::Kind::kTiming);
    std::vector<double> seconds;
    for (int i = 0; i <= kReplays; ++i) {
      begin.record(cx_.stream);
      graph.launch(cx_.stream);
      end.record(cx_.stream);
      end.wait();
      if (i > 0) seconds.push_back(1e-3 * end.ms_since(begin) / launches);
    }
    return median(seconds);
  }
  static double median(std::vector<double>& values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  // Times each row of the op's table that serves `desc` here and is asked for. With --tune: those
  // that read the layout of the plan; else all, with the first format of activations that they
  // take.
  template <typename Desc>
  void each_kernel(const Desc& desc, Reached what, const OpSequences& sequences = {}) {
    const Op op = what.op;
    const auto table = kernels_of(desc);
    const int64_t scratch_bytes = scratch_of(desc);
    if constexpr (requires { desc.format; }) what.weights = format_name(desc.format);
    std::vector<ops::ActFormat> formats = {ops::ActFormat::kInt8Row, ops::ActFormat::kInt8,
                                           ops::ActFormat::kFloat};
    if (cx_.on_gpu()) formats = {ops::ActFormat::kFp4, ops::ActFormat::kFp8, ops::ActFormat::kBF16};
    cx_.kernels.any_size = !flags_.tune.empty();
    std::optional<Layout> layout;
    if (!flags_.tune.empty()) {
      formats = {tuned_activations()};
      cx_.kernels.activations = formats[0];
      layout = ops::SitePlan({op}, table, desc, cx_.kernels).layout();
    }
    std::vector<std::string> done = {"ref"};
    for (const ops::ActFormat format : formats) {
      cx_.kernels.activations = format;
      for (const auto& row : table) {
        if (row.run == nullptr || row.refuse(desc, cx_.kernels) != nullptr ||
            (layout && row.layout != *layout) || std::ranges::find(done, row.name) != done.end())
          continue;
        done.emplace_back(row.name);
        const std::string name = std::string(ops::op_name(op)) + "/" + row.name;
        if (name.find(flags_.only) == std::string::npos) continue;
        const OpLaunch launch = OpLaunches(cx_, operands_, sequences).of(desc, row);
        cx_.scratch = {static_cast<std::byte*>(operands_.room(scratch_bytes)),
                       static_cast<size_t>(scratch_bytes)};
        Reached reached = what;
        reached.kernel = row.name, reached.tokens = desc.tokens;
        reached.seconds = time(launch.run, desc.tokens, reached.bytes);
        reached_.push_back(std::move(reached));
        operands_.clear();
      }
    }
  }
  int64_t scratch_of(const ops::AttentionDesc& desc) const {
    return cx_.on_gpu() ? ops::gpu::scratch_bytes(desc) : scratch_bytes(desc, cx_.threads());
  }
  template <typename Desc>
  int64_t scratch_of(const Desc& desc) const {
    return cx_.on_gpu() ? ops::gpu::scratch_bytes(desc)
                        : scratch_bytes(desc, desc.tokens, cx_.threads());
  }

 public:
  // What activations are rounded to where nobody says.
  ops::ActFormat tuned_activations() const {
    return activation_format("auto", /*exact=*/false, cx_.kernels.gpu);
  }

 private:
  void measure(const ops::EmbedDesc&) {}       // rows of a table, looked up
  void measure(const ops::OutputGateDesc&) {}  // in place

  template <typename Desc>
  void measure(const Desc& desc) {
    const Op op = ops::op_of(desc);
    each_kernel(desc, {.op = op, .name = ops::op_name(op), .flops = flops(desc, desc.tokens)});
  }

  // In each format that --dense-format can make of it, or in its own.
  template <typename Desc>
  void measure_dense(Desc desc) {
    const Op op = ops::op_of(desc);
    const Reached what{.op = op, .name = ops::op_name(op), .flops = flops(desc, desc.tokens)};
    if (desc.format != Format::kBF16) return each_kernel(desc, what);
    for (const Format format : {Format::kBF16, Format::kMxfp8, Format::kMxfp4, Format::kNvfp4}) {
      if (format == (cx_.on_gpu() ? Format::kMxfp8 : Format::kNvfp4)) continue;
      desc.format = format;
      each_kernel(desc, what);
    }
  }
  void measure(const ops::NormQkvDesc& desc) { measure_dense(desc); }
  void measure(const ops::OutProjDesc& desc) { measure_dense(desc); }
  void measure(const ops::MlpUpDesc& desc) { measure_dense(desc); }
  void measure(const ops::NormLinearDesc& desc) { measure_dense(desc); }
  void measure(const ops::SharedUpDesc& desc) { measure_dense(desc); }
  void measure(const ops::DeltaRuleDesc& desc) {
    each_kernel(desc,
                {.op = Op::kDeltaRule, .name = "delta_rule", .flops = flops(desc, desc.tokens)},
                {.span = flags_.span});
  }
  void measure(const ops::Mamba2Desc& desc) {
    each_kernel(desc, {.op = Op::kMamba2, .name = "mamba2", .flops = flops(desc, desc.tokens)},
                {.span = flags_.span});
  }
  void measure(const ops::AllReduceDesc&) {}  // no model of one rank has it
  void measure(const ops::NormUnembedDesc& desc) {
    if (desc.tokens <= (cx_.on_gpu() ? OpOperands::kMostDecoding : 8)) measure_dense(desc);
  }

  void measure(const ops::AttentionDesc& desc) {
    if (desc.window != kNoWindow && !flags_.tune.empty()) return;
    const std::string in = desc.window == kNoWindow ? "" : " in " + std::to_string(desc.window);
    const int64_t count = OpOperands::count_sequences(desc.tokens, flags_.span);
    for (const int64_t context : flags_.contexts)
      each_kernel(desc,
                  {.op = Op::kAttention,
                   .name = "attention" + in + " @" + std::to_string(context),
                   .flops = count * flops(desc, desc.tokens / count, context)},
                  {.context = context, .span = flags_.span});
  }

  const OpsFlags& flags_;
  const std::vector<ops::Problem> problems_;
  ops::Ctx cx_;
  Buffer counters_;
  OpOperands operands_{cx_};
  std::vector<Reached> reached_;
};

struct Machine {
  std::string name;  // of the device
  std::string text;  // with what it runs on
  DeviceRates rates;
};

double floor_seconds(const Reached& r, const Machine& machine) {
  return floor_seconds(r.bytes, r.flops, r.kernel, machine.rates);
}

void print_reached(const std::vector<Reached>& rows, const OpsFlags& flags,
                   const Machine& machine) {
  if (flags.json) {
    Json out = {{"command", command_line()},
                {"commit", commit_text()},
                {"device", machine.text},
                {"model", flags.model},
                {"read_bandwidth", machine.rates.bandwidth},
                {"rows", Json::array()}};
    for (const Reached& r : rows)
      out["rows"].push_back({{"op", r.name},
                             {"kernel", r.kernel},
                             {"weights", r.weights},
                             {"tokens", r.tokens},
                             {"seconds", r.seconds},
                             {"bytes", r.bytes},
                             {"flops", r.flops},
                             {"floor_seconds", floor_seconds(r, machine)},
                             {"percent_of_floor", 100 * floor_seconds(r, machine) / r.seconds}});
    return print_json(out);
  }
  std::printf("%s's shapes, random; %s; memory reads at %.1f GB/s\n\n", flags.model.c_str(),
              machine.text.c_str(), machine.rates.bandwidth / 1e9);
  TextTable table({"op", "kernel", "weights", ">tokens", ">MB", ">floor us", ">us", ">of floor",
                   ">GB/s", ">GFLOP/s"});
  for (const Reached& r : rows) {
    const double bytes = static_cast<double>(r.bytes), floor = floor_seconds(r, machine);
    table.add({r.name, r.kernel, r.weights, std::to_string(r.tokens), fixed_digits(bytes / 1e6, 1),
               fixed_digits(floor * 1e6, 1), fixed_digits(r.seconds * 1e6, 1),
               fixed_digits(100 * floor / r.seconds, 1) + "%",
               fixed_digits(bytes / r.seconds / 1e9, 0),
               fixed_digits(static_cast<double>(r.flops) / r.seconds / 1e9, 0)});
  }
  std::printf("%s", table.plain().c_str());
}

// The fastest of each op, format and size: the table's first unless another is clearly faster.
std::vector<ops::TunedKernel> fastest(const std::vector<Reached>& rows) {
  std::vector<ops::TunedKernel> tuned;
  std::vector<double> seconds;
  for (const Reached& r : rows) {
    const int64_t bucket = r.tokens == kLongStep ? ops::kTokenBuckets.back() : r.tokens;
    const auto same = std::ranges::find_if(tuned, [&](const ops::TunedKernel& t) {
      return t.op == r.op && t.weights == r.weights && t.max_tokens == bucket;
    });
    if (same == tuned.end()) {
      tuned.push_back({r.op, r.weights, bucket, r.kernel});
      seconds.push_back(r.seconds);
    } else if (double& best = seconds[same - tuned.begin()]; r.seconds < kNoise * best) {
      same->kernel = r.kernel;
      best = r.seconds;
    }
  }
  return tuned;
}

void write_table(const OpsFlags& flags, const KernelTable& table) {
  std::ofstream out(flags.tune);
  out << kernel_table_text(table);
  out.close();
  if (!out) throw Error(ErrorKind::kUsage, "bench ops: " + flags.tune + " cannot be written");
  std::fprintf(stderr, "%zu kernels in %s: for --kernel-table of serve, bench and doctor\n",
               table.rows.size(), flags.tune.c_str());
}

std::vector<int64_t> tokens_of(const OpsFlags& flags, bool on_gpu) {
  if (!flags.tokens.empty()) return flags.tokens;
  if (flags.tune.empty())
    return on_gpu ? std::vector<int64_t>{1, 8, 16, 32, 64, 128, 256, 512, 2048, 8192}
                  : std::vector<int64_t>{1, 8, 64, 512};
  std::vector<int64_t> tokens(ops::kTokenBuckets.begin(), ops::kTokenBuckets.end());
  tokens.back() = kLongStep;
  return tokens;
}

void bench_ops(OpsFlags flags) {
  const bool on_gpu = choose_device(flags.device, read_device_facts()) == Device::kCuda;
  if (flags.model.empty()) flags.model = on_gpu ? "openai/gpt-oss-120b" : "openai/gpt-oss-20b";
  const std::vector<int64_t> tokens = tokens_of(flags, on_gpu);
  for (const int64_t n : tokens)
    if (!flags.tune.empty() && n != kLongStep &&
        std::ranges::find(ops::kTokenBuckets, n) == ops::kTokenBuckets.end())
      throw Error(
          ErrorKind::kUsage,
          "--tune times steps of 1, 2, 4, ... 512 and 8192 tokens, not " + std::to_string(n));
  const int threads = flags.threads > 0 ? flags.threads : cpu::read_cores().usable();
  cpu::ThreadPool pool(threads);
  const cuda::Caps gpu = on_gpu ? cuda::open_device() : cuda::Caps{};
  std::optional<cuda::Stream> stream;
  if (on_gpu) stream.emplace();
  Machine machine{.name = on_gpu ? gpu.name : cpu::cpu_model_name()};
  machine.text = on_gpu
                     ? gpu.name
                     : machine.name + ", " + std::to_string(threads) + " threads, " + flags.cpu_isa;
  machine.rates =
      device_rates(gpu, on_gpu ? cuda::measure_read_bandwidth(gpu, int64_t{4} << 30, 5)
                               : cpu::measure_read_bandwidth(pool, int64_t{1} << 30, 5).median);
  OpsBench bench(flags, list_problems(flags.model), pool, stream ? &*stream : nullptr, gpu);
  const std::vector<Reached>& rows = bench.run(tokens);
  if (rows.empty())
    throw Error(ErrorKind::kUsage,
                "bench ops: no kernel that runs here has \"" + flags.only + "\" in its op/kernel");
  print_reached(rows, flags, machine);
  if (!flags.tune.empty())
    write_table(flags, {.device = machine.name,
                        .activations = ops::act_format_name(bench.tuned_activations()),
                        .model = flags.model,
                        .rows = fastest(rows)});
}

}  // namespace

void add_bench_ops(CLI::App& bench) {
  auto flags = std::make_shared<OpsFlags>();
  CLI::App* command = bench.add_subcommand(
      "ops", "Measure each kernel by itself: bytes, floor, share of the floor");
  command->add_option("MODEL", flags->model, "whose shapes: a directory, config.json or repo id");
  command
      ->add_option("--tokens", flags->tokens,
                   "of a step, separated by commas; up to 256 are one each of as many sequences, "
                   "more are a prompt")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command->add_option("--contexts", flags->contexts, "of attention")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--span", flags->span,
                   "of attention: tokens of each sequence, as where drafts are verified, of steps "
                   "up to 256 tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--only", flags->only,
                      "what has this in its op/kernel: \"attention/\", \"vnni\", \"moe_up/amx\"");
  command->add_option("--tune", flags->tune,
                      "write to this file which kernel is the fastest for each op and size of step "
                      "here, for --kernel-table");
  command->add_option("--device", flags->device, "auto, cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--seconds", flags->seconds, "that each kernel of a CPU runs at least")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "0: as many as the cgroup grants")
      ->check(CLI::Range(0, 1024));
  command->add_option("--cpu-isa", flags->cpu_isa, "as if this were the best the CPU has")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags] { bench_ops(*flags); });
}

}  // namespace nibble::cli
