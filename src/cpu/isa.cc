#include "cpu/isa.h"

#include <fstream>

#include "base/error.h"

namespace nibble::cpu {

const char* isa_name(Isa isa) {
  constexpr const char* kNames[] = {"scalar", "neon", "avx2", "avx512"};
  return kNames[static_cast<int>(isa)];
}

Isa detect_isa() {
#if defined(__aarch64__)
  return Isa::kNeon;  // part of every arm64
#elif defined(__x86_64__)
  // These ask CPUID and, for the register state, XGETBV.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!avx2) return Isa::kScalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return avx512 ? Isa::kAvx512 : Isa::kAvx2;
#else
  return Isa::kScalar;
#endif
}

Isa force_isa(std::string_view name) {
  const Isa best = detect_isa();
  if (name == "auto") return best;
  for (Isa isa : {Isa::kScalar, Isa::kNeon, Isa::kAvx2, Isa::kAvx512}) {
    if (name != isa_name(isa)) continue;
    if (supports(best, isa)) return isa;
    throw Error(ErrorKind::kUnsupported,
                "--cpu-isa " + std::string(name) + ": this machine's best is " + isa_name(best));
  }
  throw Error(ErrorKind::kUsage,
              "--cpu-isa " + std::string(name) + ": expected auto, scalar, neon, avx2 or avx512");
}

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace nibble::cpu
