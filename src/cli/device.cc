#include "cli/device.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include "base/error.h"
#include "cli/version.h"
#include "io/memory.h"

namespace nibble::cli {

DeviceFacts read_device_facts(const std::filesystem::path& root) {
  DeviceFacts facts{.built_with_cuda = built_with_cuda(), .gpus = {}};
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(root / "proc/driver/nvidia/gpus", error)) {
    std::ifstream file(entry.path() / "information");
    std::string name = "NVIDIA GPU";
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("Model:")) continue;
      const size_t start = line.find_first_not_of(" \t", 6);
      if (start != std::string::npos) name = line.substr(start);
    }
    facts.gpus.push_back(name);
  }
  std::sort(facts.gpus.begin(), facts.gpus.end());
  return facts;
}

Device choose_device(std::string_view flag, const DeviceFacts& facts) {
  if (flag == "cpu") return Device::kCpu;
  if (flag != "auto" && flag != "cuda") {
    throw Error(ErrorKind::kUsage,
                "--device " + std::string(flag) + ": it is one of auto, cpu, cuda");
  }
  if (facts.gpus.empty()) {
    if (flag == "auto") return Device::kCpu;
    throw Error(ErrorKind::kUnsupported,
                "--device cuda: the NVIDIA driver lists no GPU (/proc/driver/nvidia/gpus)");
  }
  if (facts.built_with_cuda) return Device::kCuda;
  throw Error(ErrorKind::kUnsupported,
              "this machine has a GPU (" + facts.gpus.front() +
                  "), and this build of nibble (preset " + preset_text() +
                  ") runs on CPUs only. Say --device cpu to run on the CPU all the same; `nibble "
                  "doctor` says more (of make serve: ARGS='--device cpu')");
}

int64_t read_probe_bytes() {
  constexpr int64_t kMost = int64_t{1} << 30, kLeast = int64_t{1} << 20;
  const MachineMemory memory = read_machine_memory();
  const int64_t free =
      std::min(memory.available_bytes, memory.cgroup_available_bytes.value_or(kMost));
  return std::clamp(free / 4, kLeast, kMost);
}

}  // namespace nibble::cli
