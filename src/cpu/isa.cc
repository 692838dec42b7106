#include "cpu/isa.h"

#include <fstream>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "base/error.h"

namespace nibble::cpu {

namespace {

#if defined(__x86_64__)

uint64_t enabled_states() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// CPUID leaf 7: subleaf 0's edx has AMX's bits, subleaf 1's eax AVX-VNNI's. The system saves tiles
// (XCR0 bits 17 and 18), but only for processes that ask: arch_prctl, Linux 5.16 and later.
bool has_amx() {
  constexpr uint32_t kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr uint64_t kTileStates = 3u << 17;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  uint32_t a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if ((d & (kBf16 | kTile | kInt8)) != (kBf16 | kTile | kInt8)) return false;
  if ((enabled_states() & kTileStates) != kTileStates) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_avx_vnni() {
  uint32_t a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 4)) != 0;
}

Isa detect() {
  // These ask CPUID and, for the register state, XGETBV.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!avx2) return Isa::kScalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!avx512) return has_avx_vnni() ? Isa::kAvxVnni : Isa::kAvx2;
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vbmi"))
    return Isa::kAvx512;
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512Vnni;
  if (has_amx()) return Isa::kAmx;
  // Intel's cores take as long for a dot product of bf16 as for four multiply-adds of float32.
  return __builtin_cpu_is("amd") ? Isa::kAvx512Bf16 : Isa::kAvx512Vnni;
}

#elif defined(__aarch64__)

Isa detect() {
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  return getauxval(AT_HWCAP) & kDotProducts ? Isa::kNeonDot : Isa::kNeon;
}

#else

Isa detect() { return Isa::kScalar; }

#endif

}  // namespace

const char* isa_name(Isa isa) {
  constexpr const char* kNames[kNumIsas] = {"scalar",      "neon",        "neon_dot",
                                            "avx2",        "avx_vnni",    "avx512",
                                            "avx512_vnni", "avx512_bf16", "amx"};
  return kNames[static_cast<int>(isa)];
}

Isa detect_isa() {
  static const Isa kBest = detect();
  return kBest;
}

Isa force_isa(std::string_view name) {
  const Isa best = detect_isa();
  if (name == "auto") return best;
  std::string all = "auto";
  for (int i = 0; i < kNumIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    all += std::string(", ") + isa_name(isa);
    if (name != isa_name(isa)) continue;
    if (supports(best, isa)) return isa;
    throw Error(ErrorKind::kUnsupported,
                "--cpu-isa " + std::string(name) + ": this machine's best is " + isa_name(best));
  }
  throw Error(ErrorKind::kUsage, "--cpu-isa " + std::string(name) + ": expected one of " + all);
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
