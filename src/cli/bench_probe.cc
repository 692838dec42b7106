#include "cli/bench_probe.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/cli.h"
#include "cli/json.h"
#include "cli/version.h"
#include "cuda/device.h"
#include "cuda/device_probe.h"
#include "cuda/read_bandwidth.h"
#include "io/memory.h"

namespace nibble::cli {
namespace {

struct ProbeFlags {
  double seconds = 2;
};

constexpr int64_t kMostReadBytes = int64_t{4} << 30;
constexpr int kReadRepeats = 5;

// An eighth of what is free, so that a Spark in use can be asked, too.
int64_t read_bytes() {
  return std::min(kMostReadBytes, cuda::free_memory() / 8) / (1 << 20) * (1 << 20);
}

Json mma_json(const cuda::Caps& gpu) {
  Json json = Json::object();
  for (const cuda::MmaRate& rate : cuda::measure_mma_rates(gpu)) {
    json[rate.name] = nullptr;
    if (rate.exists)
      json[rate.name] = {{"flops_per_second", rate.flops},
                         {"flops_per_clock_and_sm", rate.flops_per_clock},
                         {"clock_hz", rate.clock_hz}};
  }
  return json;
}

Json device_json(const cuda::Caps& gpu) {
  return {{"name", gpu.name},
          {"compute_capability", gpu.sm},
          {"sms", gpu.num_sms},
          {"shared_memory_of_a_block", gpu.smem_per_block_bytes},
          {"l2_bytes", gpu.l2_bytes},
          {"memory_bytes", gpu.memory_bytes},
          {"memory_free_bytes", cuda::free_memory()},
          {"shares_host_memory", cuda::shares_host_memory()},
          {"cuda", cuda::versions()}};
}

Json host_json() {
  const MachineMemory memory = read_machine_memory();
  return {{"memory_bytes", memory.total_bytes}, {"available_bytes", memory.available_bytes}};
}

void bench_probe(const ProbeFlags& flags) {
  const cuda::Caps gpu = cuda::open_device();
  Json json = {{"command", command_line()},
               {"commit", commit_text()},
               {"device", device_json(gpu)},
               {"host", host_json()}};
  const auto next = [](const char* what) { std::fprintf(stderr, "%s ...\n", what); };
  next("clocks");
  const cuda::Clocks clocks = cuda::measure_clocks(gpu, flags.seconds);
  json["clock_hz"] = {{"first", clocks.first_hz}, {"steady", clocks.steady_hz}};
  next("memory");
  json["dram_read_bytes_per_second"] =
      cuda::measure_read_bandwidth(gpu, read_bytes(), kReadRepeats);
  json["l2_read_bytes_per_second"] = cuda::measure_l2_read(gpu, gpu.l2_bytes / 4);
  next("matrix instructions");
  json["mma"] = mma_json(gpu);
  for (const cuda::BitModelCheck& bits : cuda::check_bit_models())
    json["bit_models"][bits.name] = {{"instruction", bits.is_native ? "native" : "emulated"},
                                     {"sums", bits.sums},
                                     {"differ", bits.differ},
                                     {"worst", bits.worst}};
  next("launches");
  json["clusters"] = {{"driver_says", gpu.runs_clusters}, {"ran", cuda::run_cluster()}};
  const cuda::LaunchGaps gaps = cuda::measure_launch_gaps();
  json["launch_us_in_graph"] = {{"plain", gaps.plain_us}, {"dependent", gaps.dependent_us}};
  print_json(json);
}

}  // namespace

void add_bench_probe(CLI::App& bench) {
  auto flags = std::make_shared<ProbeFlags>();
  CLI::App* command = bench.add_subcommand(
      "probe", "Measure a GPU itself: clocks, memory, matrix instructions, launches; prints JSON");
  command->add_option("--seconds", flags->seconds, "of products before the steady clock is read")
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
  command->callback([flags] { bench_probe(*flags); });
}

}  // namespace nibble::cli
