// Which vector instructions kernels may use: found at run time, lowered on demand, never assumed by
// the build.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::cpu {

enum class Isa : uint8_t {
  kScalar,  // none of the below: only the reference twins run
  kNeon,    // arm64
  kAvx2,    // AVX2, FMA and F16C
  kAvx512   // AVX-512 F, BW, VL and DQ, and all of kAvx2
};

const char* isa_name(Isa isa);  // "scalar", "neon", "avx2", "avx512"

// The best that CPU and operating system offer.
Isa detect_isa();

// Whether a machine whose best is `have` runs code written for `want`.
constexpr bool supports(Isa have, Isa want) {
  if (want == Isa::kScalar || have == want) return true;
  return have == Isa::kAvx512 && want == Isa::kAvx2;
}

// --cpu-isa: `name` as isa_name() writes it, or "auto" for detect_isa(). Throws Error(kUsage) for
// another word, Error(kUnsupported) for one that this machine does not run.
Isa force_isa(std::string_view name);

// The CPU's own name for messages and bench records: "AMD EPYC".
std::string cpu_model_name();

}  // namespace nibble::cpu
