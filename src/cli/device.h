// Which device a command runs on: decided once, at start-up, never by falling back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::cli {

enum class Device { kCpu, kCuda };

struct DeviceFacts {
  bool built_with_cuda = false;
  std::vector<std::string> gpus;  // models of the NVIDIA GPUs, as the driver names them
};

// The GPUs that the NVIDIA driver lists in /proc below `root`; needs no CUDA.
DeviceFacts read_device_facts(const std::filesystem::path& root = "/");

// `flag` is --device: auto, cpu or cuda. "auto" is the GPU where there is one. Throws
// Error(kUnsupported) where that GPU is there but this build has no kernels for it (a build for
// CPUs on such a machine would be a slow path that nobody asked for), or where "cuda" is asked for
// and the build or the machine lacks it; Error(kUsage) for another flag.
Device choose_device(std::string_view flag, const DeviceFacts& facts);

// Of host memory that its read bandwidth is measured on: 1 GiB, or a quarter of what this process
// may still take.
int64_t read_probe_bytes();

}  // namespace nibble::cli
