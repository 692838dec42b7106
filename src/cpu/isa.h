// Which vector instructions kernels may use: found at run time, lowered on demand, never assumed by
// the build.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::cpu {

enum class Isa : uint8_t {
  kScalar,      // none of the below: plain C++
  kNeon,        // arm64
  kNeonDot,     // SDOT, and all of kNeon
  kAvx2,        // AVX2, FMA and F16C
  kAvxVnni,     // AVX-VNNI, and all of kAvx2
  kAvx512,      // AVX-512 F, BW, VL and DQ, and all of kAvx2
  kAvx512Vnni,  // AVX-512 VNNI and VBMI, and all of kAvx512
  kAvx512Bf16,  // AVX-512 BF16 where it is faster than float32, and all of kAvx512Vnni
  kAmx          // AMX tiles, int8 and bf16, AVX-512 BF16 of any speed, and all of kAvx512Vnni
};
inline constexpr int kNumIsas = 9;

const char* isa_name(Isa isa);  // "scalar", "neon", "neon_dot", "avx2", "avx_vnni", "avx512", ...

// The best that CPU and operating system offer. Where that is kAmx, the process has the system's
// leave to use tiles from the first call on.
Isa detect_isa();

// The next lower level that all of `isa`'s instructions contain; kScalar has none and stays.
constexpr Isa lower(Isa isa) {
  switch (isa) {
    case Isa::kAmx:
    case Isa::kAvx512Bf16:
      return Isa::kAvx512Vnni;
    case Isa::kAvx512Vnni:
      return Isa::kAvx512;
    case Isa::kAvx512:
    case Isa::kAvxVnni:
      return Isa::kAvx2;
    case Isa::kNeonDot:
      return Isa::kNeon;
    default:
      return Isa::kScalar;
  }
}

// Whether a machine whose best is `have` runs code written for `want`.
constexpr bool supports(Isa have, Isa want) {
  for (; have != want; have = lower(have))
    if (have == Isa::kScalar) return false;
  return true;
}

// --cpu-isa: `name` as isa_name() writes it, or "auto" for detect_isa(). Throws Error(kUsage) for
// another word, Error(kUnsupported) for one that this machine does not run.
Isa force_isa(std::string_view name);

// The CPU's own name for messages and bench records: "AMD EPYC".
std::string cpu_model_name();

}  // namespace nibble::cpu
